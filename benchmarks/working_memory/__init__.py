"""What agents still know in late phases of a workflow."""
