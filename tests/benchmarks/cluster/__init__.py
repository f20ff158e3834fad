"""The simulation of many nodes."""
