"""Tests of portable files."""
