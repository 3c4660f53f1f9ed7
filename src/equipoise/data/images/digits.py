"""scikit-learn's digits: 1,797 grey 8×8 images, which come with the package."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


def digits_images() -> tuple[Tensor, Tensor]:
    """Grey levels from 0 to 16, float64 ``[1797, 1, 8, 8]``, and class numbers.

    The file is read without importing scikit-learn, which takes ten times as long.

    Raises:
        FileNotFoundError: If scikit-learn is not installed, or keeps its digits elsewhere.

    References:
        [alpaydin1998] Optical recognition of handwritten digits, UCI repository.
    """
    package = find_spec("sklearn")
    places = (package.submodule_search_locations or ()) if package else ()
    files = [Path(place, "datasets", "data", "digits.csv.gz") for place in places]
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        raise FileNotFoundError(
            "scikit-learn's digits were not found: pip install scikit-learn, version 1.4 or later."
        )
    table = _table(found).clone()
    return table[:, :-1].reshape(-1, 1, 8, 8), table[:, -1].long()


# Kept, a megabyte, as parsing takes a seventh of the time of a small check-up.
@lru_cache(maxsize=1)
def _table(file: Path) -> Tensor:
    return torch.from_numpy(np.loadtxt(file, delimiter=","))
