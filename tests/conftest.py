"""Settings of the whole suite."""

import os

from hypothesis import settings

# The first example of a test may fill caches of quadrature rules: no deadline. CI draws the same
# examples every time; on a developer's machine each run explores further.
settings.register_profile("equipoise", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("equipoise")
