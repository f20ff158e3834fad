"""Copies of files of KV in an object store: `contract` has names and errors, `s3` the client."""
