"""The documentation site's generated pages: MkDocs calls `hook.py`, the other modules write a page each.

MkDocs puts this directory on sys.path, so no module here may have the name of a package.
"""
