"""The three check-ups and the browser, as fixtures."""

import pytest

from support import report_examples
from support.browser import browser

__all__ = ["browser", "checkup", "deep", "hostile", "interrupted"]


@pytest.fixture
def deep():
    return report_examples.deep_checkup()


@pytest.fixture
def interrupted():
    return report_examples.interrupted_checkup()


@pytest.fixture
def hostile():
    return report_examples.hostile_checkup()


@pytest.fixture(params=["deep", "interrupted", "hostile"])
def checkup(request):
    """Each of the three in turn."""
    return request.getfixturevalue(request.param)
