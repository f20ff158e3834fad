"""Copies of files of KV in an object store."""
