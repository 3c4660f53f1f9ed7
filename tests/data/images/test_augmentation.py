"""Random crops and reflections: every one is a window of its image, and all windows occur."""

import pytest
import torch
from torch.nn import functional as F

from equipoise.data.images.augmentation import crop_and_flip, random_crop, random_flip


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def pictures(count, channels=2, height=5, width=4):
    """Images whose every pixel is unlike all others, and not 0."""
    return 1 + torch.arange(float(count * channels * height * width)).reshape(
        count, channels, height, width
    )


def windows(image, padding):
    """Every window of an image, cut one by one."""
    _, height, width = image.shape
    padded = F.pad(image, (padding,) * 4)
    places = range(2 * padding + 1)
    return [padded[:, r : r + height, c : c + width] for r in places for c in places]


class TestRandomCrop:
    def test_each_image_is_one_of_its_own_windows_and_each_window_occurs(self):
        images = pictures(1).repeat(200, 1, 1, 1)
        allowed = windows(images[0], 1)
        seen = set()
        for crop in random_crop(images, padding=1, generator=generator()):
            (place,) = [i for i, window in enumerate(allowed) if torch.equal(window, crop)]
            seen.add(place)
        assert len(seen) == len(allowed) == 9

    def test_images_of_a_batch_move_on_their_own_but_their_channels_together(self):
        images = pictures(8, channels=1).repeat(1, 3, 1, 1)
        crops = random_crop(images, padding=2, generator=generator())
        assert torch.equal(crops[:, 0], crops[:, 2])
        moved = [not torch.equal(a, b) for a, b in zip(images, crops, strict=True)]
        assert any(moved)
        for image, crop in zip(images, crops, strict=True):
            assert any(torch.equal(window, crop) for window in windows(image, 2))

    def test_without_padding_nothing_moves(self):
        images = pictures(3)
        assert torch.equal(random_crop(images, padding=0, generator=generator()), images)


class TestRandomFlip:
    def test_each_image_is_itself_or_its_reflection_half_of_the_time(self):
        images = pictures(1).repeat(1000, 1, 1, 1)
        found = random_flip(images, generator())
        same = (found == images).flatten(1).all(1)
        reflected = (found == images.flip(3)).flatten(1).all(1)
        assert bool((same ^ reflected).all())
        standard_error = (0.25 * 1000) ** 0.5
        assert abs(int(same.sum()) - 500) < 4 * standard_error


class TestBoth:
    def test_the_generator_decides_and_the_global_state_is_left_alone(self):
        images = pictures(16, height=8, width=8)
        before = torch.get_rng_state()
        one, other = (crop_and_flip(images, generator=generator(5)) for _ in range(2))
        assert torch.equal(one, other)
        assert torch.equal(torch.get_rng_state(), before)
        assert not torch.equal(one, crop_and_flip(images, generator=generator(6)))
        with torch.device("meta"):  # a default device is not the images'
            assert torch.equal(crop_and_flip(images, generator=generator(5)), one)

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.float64])
    def test_the_dtype_is_kept(self, dtype):
        images = torch.ones(2, 1, 6, 6, dtype=dtype)
        assert crop_and_flip(images, generator=generator()).dtype == dtype

    def test_bad_input_is_refused(self):
        with pytest.raises(ValueError, match=r"got \[3, 8, 8\].*unsqueeze"):
            crop_and_flip(torch.ones(3, 8, 8))
        with pytest.raises(
            ValueError, match="padding must be a whole number of at least 0; got -1"
        ):
            crop_and_flip(torch.ones(2, 3, 8, 8), padding=-1)
