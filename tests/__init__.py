"""Tests mirror the packages: `tests.gateway` tests `gateway`, and so on."""
