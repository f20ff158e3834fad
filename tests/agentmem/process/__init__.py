"""Tests of what every service's process has."""
