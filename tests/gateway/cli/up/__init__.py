"""Tests of `agentmem up`."""
