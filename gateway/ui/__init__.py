"""The page at /ui/. Nothing of `static/` is built; its modules are typed in JSDoc. `static/vendor/VENDORED.json` has
versions, licences and checksums of libraries.
"""
