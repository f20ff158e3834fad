"""Turns on the event loop: from a request to a committed ledger. Begin at `runner`."""
