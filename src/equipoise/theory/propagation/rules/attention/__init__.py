"""Products of queries, keys and values."""
