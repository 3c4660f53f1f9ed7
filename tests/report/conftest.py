"""The three check-ups, as fixtures."""

import pytest

from support import report_examples


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
