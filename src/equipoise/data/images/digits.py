"""scikit-learn's digits: 1,797 grey 8×8 images, which come with the package."""

from __future__ import annotations

import torch
from torch import Tensor


def digits_images() -> tuple[Tensor, Tensor]:
    """Grey levels from 0 to 16, float64 ``[1797, 1, 8, 8]``, and class numbers.

    References:
        [alpaydin1998] Optical recognition of handwritten digits, UCI repository.
    """
    # Imported here because it takes a second, which other data need not wait for.
    from sklearn.datasets import load_digits

    bundle = load_digits()
    images = torch.as_tensor(bundle.images, dtype=torch.float64).unsqueeze(1)
    return images, torch.as_tensor(bundle.target, dtype=torch.int64)
