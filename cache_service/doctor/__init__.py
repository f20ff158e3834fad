"""The store's half of `agentmem doctor`: what can be known of a data directory and its disk without changing either.

`python -m cache_service.doctor`, with the flags of `agentmem-store`, writes the lines of `agentmem.checkup`. A store
may be running on the directory meanwhile.

__main__.py      the checks in order
directory.py     whose the directory is, who else can read it, and whether a store holds it
file_system.py   what kind of file system it is on, and what that means
room.py          bytes free against the store's limits
speed.py         how fast the disk writes and reads, measured in a file without a name
database.py      the first look at store.db; `agentmem store check` is the whole one
"""
