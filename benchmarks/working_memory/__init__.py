"""Agents' knowledge in late phases of a workflow."""
