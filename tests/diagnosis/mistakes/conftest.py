"""Check-ups that are to tell of a mistake search no depth."""

import pytest


@pytest.fixture(autouse=True)
def _without_depth(no_depth):
    """No mistake is about it."""
