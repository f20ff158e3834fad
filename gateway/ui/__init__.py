"""The page at /ui/. `static/` is served as it is; its modules are typed in JSDoc."""
