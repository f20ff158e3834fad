"""Files of KV on the disk (`directory`, `disk`), their rows in warm.db (`references`, `holding`), and `publication`."""
