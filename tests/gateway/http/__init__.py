"""The HTTP door on real sockets."""
