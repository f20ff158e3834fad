"""The gRPC server of the gateway."""
