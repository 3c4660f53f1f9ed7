import gzip
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.data.images.idx import read_idx, read_labelled_images
from support.idx_format import CODES, encode_idx, image_files

NUMBERS = {
    "uint8": st.integers(0, 255),
    "int8": st.integers(-128, 127),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "float32": st.floats(width=32, allow_nan=False),
    "float64": st.floats(allow_nan=False),
}


@st.composite
def arrays(draw):
    kind = draw(st.sampled_from(sorted(CODES)))
    shape = draw(st.lists(st.integers(0, 4), min_size=0, max_size=4))
    size = math.prod(shape)
    return kind, shape, draw(st.lists(NUMBERS[kind], min_size=size, max_size=size))


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("idx") / "values"


@settings(max_examples=60, deadline=None)
@given(array=arrays(), zipped=st.booleans())
def test_reads_back_what_the_format_says(scratch, array, zipped):
    kind, shape, values = array
    content = encode_idx(values, shape, kind)
    scratch.write_bytes(gzip.compress(content, 1) if zipped else content)
    tensor = read_idx(scratch)
    assert tensor.dtype == getattr(torch, kind)
    assert list(tensor.shape) == shape
    assert tensor.flatten().tolist() == values


@settings(max_examples=40, deadline=None)
@given(array=arrays(), data=st.data())
def test_every_shortened_file_is_refused(scratch, array, data):
    kind, shape, values = array
    content = encode_idx(values, shape, kind)
    scratch.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(ValueError, match=r"values is truncated"):
        read_idx(scratch)


def test_tensors_are_writable(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(encode_idx([1, 2], (2,)))
    assert read_idx(path).add_(1).tolist() == [2, 3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x89PNG\r\n", r"file is not an IDX file: its magic number is 0x89504e47"),
        (b"\0\0\x0a\x01\0\0\0\0", r"magic number is 0x00000a01"),
        (b"\0\0", r"file is truncated: .* has 2"),
        (b"\0\0\x08\x03\0\0\0\x01", r"header of 3 dimensions takes 16 bytes, the file has 8"),
        (encode_idx([1, 2, 3], (2,)), r"trailing bytes: .*shape \[2\] of uint8, 2 .* 3 follow"),
        (encode_idx([1], (2**32 - 1, 2**32 - 1)), r"truncated: .* and 1 follow"),
        (gzip.compress(b"\0\0\x08\x01", mtime=0)[:-6], r"file is a damaged gzip file"),
        (b"\x1f\x8bnonsense", r"file is a damaged gzip file"),
    ],
)
def test_damaged_files_are_named_with_what_was_found(tmp_path, content, message):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_idx(path)


class TestLabelledImages:
    @pytest.fixture
    def pair(self, tmp_path):
        images, labels = tmp_path / "images", tmp_path / "labels"
        for path, content in zip((images, labels), image_files(), strict=True):
            path.write_bytes(content)
        return images, labels

    def test_both_are_read(self, pair):
        images, labels = read_labelled_images(*pair)
        assert images.shape == (6, 2, 2)
        assert labels.tolist() == [0, 1, 2, 3, 4, 5]

    def test_swapped_files_are_refused(self, pair):
        with pytest.raises(ValueError, match=r"labels must hold uint8 values of 3 dimensions"):
            read_labelled_images(pair[1], pair[0])

    def test_another_type_is_refused(self, pair):
        pair[1].write_bytes(encode_idx([0.0] * 6, (6,), "float32"))
        with pytest.raises(ValueError, match=r"got float32 of shape \[6\]"):
            read_labelled_images(*pair)

    def test_different_counts_are_refused(self, pair):
        pair[1].write_bytes(encode_idx([0] * 5, (5,)))
        with pytest.raises(ValueError, match=r"holds 6 images, but .* holds 5 labels"):
            read_labelled_images(*pair)
