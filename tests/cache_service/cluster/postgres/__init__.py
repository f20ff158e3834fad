"""PostgreSQL as the ledger's database."""
