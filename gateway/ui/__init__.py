"""The page at /ui/: `files.py` serves `static/`, of which nothing is built. Its modules are typed in JSDoc. A view is a
module of `static/views/`; `static/vendor/VENDORED.json` has versions, licences and checksums of libraries.
"""
