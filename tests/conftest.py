"""Settings of the whole suite."""

from support.settings import seeded

__all__ = ["seeded"]
