"""Quirks of model families, as data."""
