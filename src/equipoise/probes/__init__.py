"""What can be measured on the user's own model, without leaving a trace on it."""

from equipoise.probes.conditioning import conditioning
from equipoise.probes.gradient_growth import gradient_growth
from equipoise.probes.guard import untouched

__all__ = ["conditioning", "gradient_growth", "untouched"]
