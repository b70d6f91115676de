"""The doors: gRPC and HTTP."""
