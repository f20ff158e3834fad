"""Tests of the gateway: pure translation, and its servers on real sockets before a scripted worker."""
