"""Tests of what worker and store share of KV."""
