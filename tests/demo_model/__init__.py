"""Tests of the bundled demo model and of what makes it."""
