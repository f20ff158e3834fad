"""Agents and their ledgers: the rows of store.db.

`ledgers` is a database's interface, `database` SQLite's, `schema` its tables. Others are functions of a connection,
inside the caller's transaction: `segments` is the tree of ledgers, `agents` and `snapshots` its heads.
"""
