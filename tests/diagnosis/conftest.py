"""Settings of the tests of check-ups."""

from support.settings import no_depth, one_thread

__all__ = ["no_depth", "one_thread"]
