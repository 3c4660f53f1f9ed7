"""The browser, as a fixture."""

from support.browser import browser

__all__ = ["browser"]
