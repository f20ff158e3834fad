"""The cache store: ledgers in SQLite, KV in immutable files, one data directory, one process. Where to read:

__main__.py        the process; `settings`, the `limits` of the warm tier, and `metrics` that it exports
store.py           opens and closes all of it in order

servicer*.py       the RPCs: of CacheStoreService (workflows: those of the gateway), and of AgentService's storage half
                   (agents, branches, tiers)
conversions.py     messages as frozen dataclasses, and back

turns.py           transactions, each a function of one SQLite connection: commits and what they replay,
ledger.py          the tree of segments that ledgers are, and `ledger_writer` what makes them grow, within its quota,
agents.py          agents, their versions and their deletion; `creation` makes one with a history,
branches.py        forks, cuts and returns,
snapshots.py       states that are kept under a name,
references.py      who needs which file,
eviction.py        whose KV goes to make room,
expiry.py          what ends by itself; `clock` is the time that it goes by,
history.py         what each commit brought, for who reads a memory,
finding.py         the agent whose conversation begins one that is given,
usage.py           what namespaces take; `quotas` is how much they may,
quarantine.py      files that failed,
workflow_records.py  records of workflow runs

blocks.py          files and rows, moved together; `publication` is what a worker hands in, and its verification
warm.py            the warm tier's limits at work; `last_use` is when agents and files were last used,
                   `writability` whether the disk takes a turn
streams.py         files as streams of bytes, for workers elsewhere; `incoming`, `spool` and `probe` are their parts
database.py        the thread that owns SQLite; `schema` and the scripts in `migrations/` are its tables, `checksums`
                   its own, and `first_page` says which version a file has
lost_ledger.py     files of KV whose database is lost, which are not taken for a new directory's
files.py           the data directory; `removal` is what its disk has kept
erasure.py         deletions, finished until no byte is left

offline/           what an operator does to a directory that nobody serves
doctor/            the store's half of `agentmem doctor`
remote/            the object store; `objects` and `place` are its rows, `replication` keeps it as they say, `retrieval`
                   brings files back
"""
