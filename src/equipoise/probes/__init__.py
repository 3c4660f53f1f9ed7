"""What can be measured on the user's own model, without leaving a trace on it."""

from equipoise.probes.conditioning import conditioning
from equipoise.probes.gradient_growth import GrowthInterrupted, gradient_growth
from equipoise.probes.guard import untouched
from equipoise.probes.modules import unwatched

__all__ = ["GrowthInterrupted", "conditioning", "gradient_growth", "untouched", "unwatched"]
