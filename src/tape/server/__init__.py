"""The process of `tape serve`: gRPC services and HTTP routes over one engine; and the gateway."""
