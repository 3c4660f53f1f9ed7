"""The three check-ups, their pages, and the browser, as fixtures."""

import pytest

from support import report_examples
from support.browser import browser

__all__ = ["browser", "checkup", "deep", "hostile", "interrupted", "page"]


@pytest.fixture
def deep():
    return report_examples.deep_checkup()


@pytest.fixture
def interrupted():
    return report_examples.interrupted_checkup()


@pytest.fixture
def hostile():
    return report_examples.hostile_checkup()


@pytest.fixture(params=report_examples.CHECKUPS)
def checkup(request):
    """Each of the three in turn."""
    return report_examples.CHECKUPS[request.param]()


@pytest.fixture(params=report_examples.CHECKUPS)
def page(request):
    """The page of each of the three in turn."""
    return report_examples.page_of(request.param)
