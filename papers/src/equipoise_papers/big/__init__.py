"""One training over several processes, with exact resume."""
