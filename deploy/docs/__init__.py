"""The documentation site's generated pages: `hook.py` is what MkDocs calls, the other modules write one page each.

MkDocs puts this directory on sys.path while it loads the hook, so no module here may have the name of a package.
"""
