"""Subcommands that this package adds to ``equipoise``."""
