"""Settings of the tests of check-ups."""

from support.settings import one_thread

__all__ = ["one_thread"]
