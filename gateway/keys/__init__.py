"""Keys that callers show: made and revoked by `agentmem keys`, kept as hashes in one file, asked for at both doors.

format.py   a key, as it is shown and as it is kept; the file's text. Pure
file.py     reading and changing the file
ring.py     who shows which key, by the file as it is now
"""
