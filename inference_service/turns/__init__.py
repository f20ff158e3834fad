"""Turns on the event loop: from a request to a committed ledger, with the engine and the store at either hand."""
