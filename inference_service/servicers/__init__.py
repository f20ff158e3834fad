"""The worker's gRPC services."""
