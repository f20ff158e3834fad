"""Tests of the benchmarks' pure parts."""
