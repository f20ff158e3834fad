"""Files of KV on the disk, and their rows in warm.db."""
