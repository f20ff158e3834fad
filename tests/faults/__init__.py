"""Faults of disks and sudden deaths, injected below the processes under test: see shim.c."""
