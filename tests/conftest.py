"""Settings of the whole suite."""

from support.settings import (
    pytest_collection,
    pytest_collection_finish,
    pytest_collection_modifyitems,
    seeded,
)

__all__ = [
    "pytest_collection",
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "seeded",
]
