"""Records that every room uses, and their JSON form."""

from equipoise.records.codec import from_plain, to_plain, write_json
from equipoise.records.estimate import Estimate
from equipoise.records.finding import Finding

__all__ = [
    # values
    "Estimate",
    "Finding",
    # to JSON and back
    "from_plain",
    "to_plain",
    "write_json",
]
