"""Pure translation of the dialects: JSON in, messages of the contract out, and their events back as JSON."""
