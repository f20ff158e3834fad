"""The ledger on PostgreSQL, for several machines: the same functions of a connection, on another engine.

`database` runs them as transactions, `adapter` is the connection that they get, `settings` what is asked of a server
and checked, `silence` how long an answer is waited for, `schema` its tables. Nothing here is imported where the ledger
is SQLite's: psycopg is an extra.
"""
