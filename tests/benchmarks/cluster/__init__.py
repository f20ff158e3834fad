"""Tests of benchmarks.cluster."""
