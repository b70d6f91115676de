"""The gRPC door: the service tape.v1.Tape."""
