"""Benchmarks: what of them can be wrong without a machine."""
