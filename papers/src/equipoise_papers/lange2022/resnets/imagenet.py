"""ImageNet in folders by class, which only scale ``paper`` needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from equipoise.instrument import Batch
from equipoise.training import Evaluation, cross_entropy, evaluate
from equipoise_papers.big.batches import ShuffledOrder, step_generator
from equipoise_papers.big.distributed import Ranks
from equipoise_papers.image_folders import PARTS, image_folder, torchvision

NAME = "imagenet"
# The shorter side before the crop, as in [krizhevsky2012], section 2.
_RESIZED = 256
_WORKERS = 8
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_SEEDS = 2**62


@dataclass(frozen=True, slots=True, eq=False)
class Folders:
    """Training images, and batches of test images.

    Args:
        train: Training images; each access reads, crops and reflects an image.
        test: Batches of the test set.
        classes: Number of classes.
    """

    train: Sequence[tuple[Tensor, int]]
    test: Iterable[Batch]
    classes: int

    def evaluate(self, model: nn.Module, step: int) -> Evaluation:
        """Loss and accuracy over all test images."""
        device = next(model.parameters()).device
        loss, right, samples = 0.0, 0.0, 0
        for x, y in self.test:
            found = evaluate(model, x.to(device), y.to(device), cross_entropy)
            loss += found.loss * len(x)
            right += (found.accuracy or 0.0) * len(x)
            samples += len(x)
        return Evaluation(step, loss / samples, right / samples)


@dataclass(frozen=True, slots=True, eq=False)
class FolderBatches:
    """Batches for :func:`equipoise_papers.train_big` that processes read as they go.

    What a step draws for an image, such as the position of its crop, depends only on the seed,
    the step and the image's position in the joint batch: neither the number of ranks nor
    interruptions change it.

    Args:
        images: Pairs of an image and a class.
        order: Which images each step takes.
        device: Where batches go.
        workers: Processes that read.
    """

    images: Sequence[tuple[Tensor, int]]
    order: ShuffledOrder
    device: torch.device
    workers: int = _WORKERS

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.order.steps

    @property
    def batch_size(self) -> int:
        """Samples of all ranks together."""
        return self.order.batch_size

    @property
    def identity(self) -> dict[str, int | str]:
        """The order's identity, which a checkpoint compares."""
        return self.order.identity

    def shares(self, start: int, here: Ranks) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images and classes of this rank."""
        loader: DataLoader[Any] = DataLoader(
            _Drawn(self.images),
            batch_sampler=self._drawn(start, here),
            num_workers=self.workers,
            # Without one the loader would draw from the global generator.
            generator=step_generator(self.order.seed, start),
        )
        return ((x.to(self.device), y.to(self.device)) for x, y in loader)

    def _drawn(self, start: int, here: Ranks) -> Iterator[list[tuple[int, int]]]:
        rows = here.share(self.batch_size)
        for step, indices in enumerate(self.order.joint(start), start):
            generator = step_generator(self.order.seed, step)
            seeds = torch.randint(_SEEDS, (self.batch_size,), generator=generator)
            yield list(zip(indices[rows].tolist(), seeds[rows].tolist(), strict=True))


class _Drawn(Dataset[tuple[Tensor, int]]):
    """Images with a seed each for their random transforms."""

    def __init__(self, images: Sequence[tuple[Tensor, int]]) -> None:
        self._images = images

    def __getitem__(self, item: tuple[int, int]) -> tuple[Tensor, int]:
        index, seed = item
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self._images[index]


def images(batch_size: int, side: int) -> Folders:
    """Read ``imagenet/train/CLASS/*`` and ``imagenet/test/CLASS/*`` with torchvision.

    Args:
        batch_size: Images per batch of the test set.
        side: Pixels a side of the crops; training crops are random, and reflected at random.

    Raises:
        DataNotFoundError: If the folders lie neither in ``--data-dir`` nor in the cache.
        ValueError: If torchvision is not installed.
    """
    folder = image_folder(NAME)
    vision = torchvision()
    transforms = vision.transforms
    ending = [transforms.ToTensor(), transforms.Normalize(_MEAN, _DEVIATION)]
    crops = {
        "train": [transforms.RandomCrop(side), transforms.RandomHorizontalFlip()],
        "test": [transforms.CenterCrop(side)],
    }
    train, test = (
        vision.datasets.ImageFolder(
            str(folder / part),
            transforms.Compose([transforms.Resize(_RESIZED), *crops[part], *ending]),
        )
        for part in PARTS
    )
    return Folders(train, DataLoader(test, batch_size, num_workers=_WORKERS), len(train.classes))
