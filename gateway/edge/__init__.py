"""What stands before every request: who calls, with which key, over which TLS, and how much at once."""
