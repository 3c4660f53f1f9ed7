"""Named image sets as training and test sets, scaled to [0, 1] as the papers train on them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from equipoise.data.folders import user_dir
from equipoise.data.images.digits import digits_images
from equipoise.data.images.named import IMAGE_SETS
from equipoise.data.images.scaling import to_unit
from equipoise.data.source import Samples
from equipoise.numerics.options import named_options

# scikit-learn's digits come without a test set: every fifth sample is one.
_EVERY = 5


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Images in [0, 1] to train on and to test on.

    Args:
        train: Inputs ``[N, C, H, W]`` and class numbers.
        test: The same of held-out images.
    """

    train: Samples
    test: Samples

    def standardised(
        self, *, eps: tuple[float, float] = (1e-2, 1e-4), pixels: bool = True
    ) -> Split:
        r"""Centre and scale both by the training set's statistics.

        .. math:: x \leftarrow (x - \mu)/\tilde\sigma, \qquad
                  \tilde\sigma^2 = \sigma^2 + \varepsilon_1\max\sigma^2 + \varepsilon_2

        with the ε of batch normalisation preconditioning, whose first layer it imitates.

        Args:
            eps: ε₁ and ε₂.
            pixels: Statistics of every pixel; otherwise of every channel.

        Examples:
            >>> inputs = split("digits").standardised().train.inputs
            >>> bool(inputs.mean(0).abs().max() < 1e-5)
            True
        """
        over = [0] if pixels else [0, 2, 3]
        x = self.train.inputs
        mean = x.mean(over, keepdim=True)
        variance = x.var(over, correction=0, keepdim=True)
        deviation = (variance + eps[0] * variance.max() + eps[1]).sqrt()

        def scaled(samples: Samples) -> Samples:
            inputs = (samples.inputs - mean) / deviation
            return Samples(samples.name, inputs, samples.targets, samples.classes)

        return Split(scaled(self.train), scaled(self.test))


@named_options
def split(name: str, *, data_dir: str | Path | None = None, download: bool = False) -> Split:
    """Load a named set of images.

    Args:
        name: One of ``digits``, ``fashion-mnist``, ``mnist``, ``cifar10``, ``cifar100``. Of the
            digits every fifth one is for testing.
        data_dir: Where to look first; ``$EQUIPOISE_DATA`` by default.
        download: Whether Fashion-MNIST may be fetched.

    Raises:
        DataNotFoundError: If the files are in none of the known folders.
        ValueError: If the name is unknown, or there is no folder ``data_dir``.

    Examples:
        >>> digits = split("digits")
        >>> tuple(digits.train.inputs.shape), len(digits.test)
        ((1437, 1, 8, 8), 360)
        >>> float(digits.train.inputs.min()), float(digits.train.inputs.max())
        (0.0, 1.0)
    """
    folder = user_dir(data_dir)
    if name == "digits":
        images, labels = digits_images()
        test = torch.arange(len(images), device="cpu") % _EVERY == 0
        return Split(*(to_unit(name, images[p], labels[p], 10, white=16) for p in (~test, test)))
    if name not in IMAGE_SETS:
        known = ", ".join(["digits", *IMAGE_SETS])
        raise ValueError(f"{name!r} has no training and test set; those that have: {known}.")
    images_of = partial(IMAGE_SETS[name].images, folder=folder, download=download)
    classes = IMAGE_SETS[name].classes
    return Split(*(to_unit(name, *images_of(part), classes) for part in ("train", "test")))
