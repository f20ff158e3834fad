"""The HTTP server: routes, middleware, turns over every dialect, REST, and the OpenAPI document."""
