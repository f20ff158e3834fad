"""What is under deploy/, without a stack."""
