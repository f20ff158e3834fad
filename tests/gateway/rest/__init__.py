"""REST on real sockets, and its transcoding."""
