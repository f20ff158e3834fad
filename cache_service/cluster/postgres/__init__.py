"""The ledger on PostgreSQL, for several machines: the same functions of a connection, on another engine.

Not imported where the ledger is SQLite's: psycopg is an extra. Here a transaction that is rolled back leaves a gap in
the ids, deleted text stays in the server's log and backups, and files of a lost `warm.db` are deleted.
"""
