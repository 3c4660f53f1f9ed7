"""One module a family of operations."""
