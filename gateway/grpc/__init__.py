"""The gRPC server of the gateway: authentication, and forwarding to the worker by the contract's descriptors."""
