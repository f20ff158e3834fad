"""The OpenAPI document, and the door held against it."""
