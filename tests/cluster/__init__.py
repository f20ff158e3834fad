"""Several nodes on one ledger: what clients were told, held against what the ledger has."""
