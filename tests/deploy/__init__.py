"""deploy/ is tested without a stack."""
