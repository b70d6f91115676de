"""The gRPC service: the service tape.v1.Tape."""
