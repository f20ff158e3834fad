"""Tests of the gateway: pure translation, and doors on real sockets before a scripted worker."""
