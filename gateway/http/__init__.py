"""The HTTP door: routes, the rim where errors become pages, and server-sent events."""
