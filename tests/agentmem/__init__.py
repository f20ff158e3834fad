"""Tests of the contract package: what both ends share."""
