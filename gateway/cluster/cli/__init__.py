"""`agentmem cluster`: certificates for nodes (certificates.py), and what nodes there are (status.py)."""
