"""The ledger on PostgreSQL, for several machines: the same functions of a connection, on another engine.

`database` runs them as transactions, `adapter` is the connection that they get, `settings` what is asked of a server
and checked, `silence` how long an answer is waited for, `schema` its tables. Nothing here is imported where the ledger
is SQLite's: psycopg is an extra.

What differs from SQLite: a transaction that is rolled back leaves a gap in the ids; a namespace's bytes are the sum of
64 rows; deleted text stays in the server's pages, log and backups until these are overwritten; the time of an agent's
last use is written every ten seconds; files of KV of a lost `warm.db` are deleted.
"""
