"""The dialects as pure translation: JSON in, messages of the contract out, and their events back as JSON."""
