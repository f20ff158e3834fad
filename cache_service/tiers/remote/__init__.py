"""The remote tier: copies of files of KV in an object store, for what the disk has no room for.

`contract` says what a remote tier does and when it is called, and is all that the rest of the store knows; `s3` keeps
objects in S3 or what speaks like it.
"""
