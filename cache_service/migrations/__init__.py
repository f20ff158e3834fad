"""The scripts that make the tables of `store.db`; see `schema`. Their numbers are their order."""
