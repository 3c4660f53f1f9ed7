import gzip
import sys
from pathlib import Path

import pytest
import torch

from equipoise.data import DataNotFoundError, load, split
from equipoise.data.images.mnist import DEBIAN_FOLDER, fashion_mnist_images
from equipoise.data.user import IndexedSource, LoaderSource
from support.idx_format import image_files


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))


def moments(inputs):
    mean = inputs.sum(dtype=torch.float64) / inputs.numel()
    square = torch.linalg.vector_norm(inputs, dtype=torch.float64) ** 2 / inputs.numel()
    return float(mean), float(square - mean**2)


def write_pair(folder, *, mark="-", end="", count=6):
    folder.mkdir(parents=True, exist_ok=True)
    names = f"train-images{mark}idx3-ubyte{end}", f"train-labels{mark}idx1-ubyte{end}"
    for name, content in zip(names, image_files(count), strict=True):
        (folder / name).write_bytes(gzip.compress(content) if end else content)


class TestDigits:
    def test_the_bundled_set(self):
        digits = load("digits")
        assert digits.inputs.shape == (1797, 1, 8, 8)
        assert digits.inputs.dtype == torch.float32
        assert digits.targets.dtype == torch.int64
        assert digits.targets.unique().tolist() == list(range(10))
        assert (digits.name, digits.classes) == ("digits", 10)

    def test_the_whole_set_has_mean_0_and_variance_1(self):
        # float32 rounding over 1.2·10⁵ numbers; measured 2.4·10⁻⁹ and 1.6·10⁻⁹.
        assert moments(load("digits").inputs) == pytest.approx((0, 1), abs=1e-6)


class TestText:
    def test_the_targets_are_the_next_characters_all_of_them(self):
        text = load("text:50")
        read = torch.cat([text.inputs.flatten(), text.targets[-1, -1:]])
        assert torch.equal(read[1:], text.targets.flatten())
        assert len(text) > 8_000  # of CPython 3.11: 9,300
        assert (text.inputs.dtype, text.targets.dtype) == (torch.int64, torch.int64)

    def test_tokens_are_ranked_by_how_often_they_occur(self):
        text = load("text:50")
        often = text.inputs.flatten().bincount(minlength=text.classes)
        assert (often[:-2] >= often[1:-1] - 50).all()  # the last piece is left out
        assert int(text.inputs.max()) == text.classes - 1 == 95

    def test_rarer_characters_share_the_last_token(self):
        some, all_of_them = load("text:50:12"), load("text:50")
        assert some.classes == 12
        assert torch.equal(some.inputs, all_of_them.inputs.clamp(max=11))

    def test_a_vocabulary_larger_than_the_text_s_stays_the_text_s(self):
        assert 96 < load("text:50:50257").classes < 256

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ("text:", r"Expected text:LENGTH, such as text:64, .*, got 'text:'"),
            ("text:8x8", "Expected text:LENGTH"),
            ("text:0", "at least 1, a vocabulary at least 2, got 'text:0'"),
            ("text:64:1", "at least 1, a vocabulary at least 2, got 'text:64:1'"),
            ("text:9999999", "'text:9999999' asks for pieces longer than the text of "),
            ("text", r"no data named 'text'.*Did you mean 'text:LENGTH'\?"),
            ("texts:64:30", r"no data named 'texts:64:30'.*Did you mean 'text:LENGTH'\?"),
        ],
    )
    def test_what_means_nothing_is_refused(self, spec, message):
        with pytest.raises(ValueError, match=message):
            load(spec)

    def test_a_python_without_its_manual_says_so(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
        with pytest.raises(DataNotFoundError, match=r"without its manual .* Give a data set of"):
            load("text:64")


class TestRandom:
    def test_shape_and_classes(self):
        noise = load("random:3x4x5:7")
        assert noise.inputs.shape == (2048, 3, 4, 5)
        assert noise.targets.unique().tolist() == list(range(7))
        assert (noise.name, noise.classes) == ("random:3x4x5:7", 7)

    def test_vectors_and_number_of_samples(self):
        assert load("random:16:2:100").inputs.shape == (100, 16)

    def test_always_the_same_and_global_state_as_found(self):
        before = torch.get_rng_state()
        first, second = load("random:16:2"), load("random:16:2")
        assert torch.equal(first.inputs, second.inputs)
        assert torch.equal(first.targets, second.targets)
        assert torch.equal(torch.get_rng_state(), before)

    def test_standard_normal_within_4_standard_errors(self):
        inputs = load("random:64:2").inputs
        count = inputs.numel()
        mean, variance = moments(inputs)
        assert abs(mean) < 4 / count**0.5
        assert abs(variance - 1) < 4 * (2 / count) ** 0.5

    @pytest.mark.parametrize(
        "spec", ["random:", "random:3x:10", "random:3", "random:-3:2", "random:3:2:1:1"]
    )
    def test_other_forms_are_refused(self, spec):
        with pytest.raises(ValueError, match=rf"Expected random:SHAPE:CLASSES.*got '{spec}'"):
            load(spec)

    @pytest.mark.parametrize("spec", ["random:3x0:2", "random:3:0", "random:3:2:0"])
    def test_zeros_are_refused(self, spec):
        with pytest.raises(ValueError, match="at least 1"):
            load(spec)

    def test_more_than_memory_is_refused(self):
        with pytest.raises(ValueError, match="more than 8 GB"):
            load("random:3x1000x1000:10")


class TestMnist:
    @pytest.mark.parametrize("mark", ["-", "."])
    @pytest.mark.parametrize("end", ["", ".gz"])
    def test_every_spelling(self, tmp_path, mark, end):
        write_pair(tmp_path, mark=mark, end=end)
        samples = load("mnist", data_dir=tmp_path)
        assert samples.inputs.shape == (6, 1, 2, 2)
        assert samples.targets.tolist() == [0, 1, 2, 3, 4, 5]
        # float32 rounding over 24 numbers.
        assert moments(samples.inputs) == pytest.approx((0, 1), abs=1e-6)

    def test_torchvisions_layout_comes_before_loose_files(self, tmp_path):
        write_pair(tmp_path / "MNIST" / "raw", count=9)
        write_pair(tmp_path / "FashionMNIST" / "raw", count=8)
        write_pair(tmp_path, count=7)
        assert len(load("mnist", data_dir=tmp_path)) == 9
        assert len(load("fashion-mnist", data_dir=tmp_path)) == 8

    def test_the_cache(self, tmp_path):
        write_pair(tmp_path / "cache" / "mnist")
        assert len(load("mnist")) == 6

    def test_images_without_labels_are_not_enough(self, tmp_path):
        write_pair(tmp_path)
        (tmp_path / "train-labels-idx1-ubyte").unlink()
        with pytest.raises(DataNotFoundError, match=r"MNIST was not found: looked for"):
            load("mnist", data_dir=tmp_path)


class TestFashionMnist:
    def test_search_order(self, tmp_path):
        own, debian = tmp_path / "own", tmp_path / "debian"

        def found():
            return len(fashion_mnist_images("train", own, debian=debian)[0])

        write_pair(tmp_path / "cache" / "fashion-mnist", count=6)
        assert found() == 6
        write_pair(debian, count=7)
        assert found() == 7
        write_pair(own, count=8)
        assert found() == 8

    @pytest.mark.skipif(
        not DEBIAN_FOLDER.is_dir(), reason="Debian's dataset-fashion-mnist is not installed"
    )
    def test_debians_copy(self):
        samples = load("fashion-mnist")
        assert samples.inputs.shape == (60_000, 1, 28, 28)
        assert samples.inputs.dtype == torch.float32
        assert samples.targets.bincount().tolist() == [6000] * 10
        # float32 rounding over 4.7·10⁷ numbers; measured 1.4·10⁻⁹ and 4.7·10⁻⁸.
        assert moments(samples.inputs) == pytest.approx((0, 1), abs=1e-5)
        # The first training image is an ankle boot.
        assert samples.targets[0] == 9


USER_FILE = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from late_neighbour_of_data import COUNT

train_set = TensorDataset(torch.zeros(COUNT, 3), torch.zeros(COUNT, dtype=torch.int64))
loader = DataLoader(train_set, batch_size=5)

def make():
    import second_neighbour_of_data
    return loader

number = 3
"""


class TestUsersFiles:
    @pytest.fixture(autouse=True)
    def _project(self, tmp_path, monkeypatch):
        folder = tmp_path / "project"
        folder.mkdir()
        (folder / "train.py").write_text(USER_FILE)
        (folder / "late_neighbour_of_data.py").write_text("COUNT = 20\n")
        (folder / "second_neighbour_of_data.py").write_text("")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        before = set(sys.modules)
        yield
        for name in set(sys.modules) - before:
            if "of_data" in name or name.startswith("_equipoise_user"):
                del sys.modules[name]

    @pytest.mark.parametrize(
        ("name", "kind", "size"),
        [
            ("train_set", IndexedSource, 8),
            ("loader", LoaderSource, 5),
            ("make", LoaderSource, 5),
        ],
    )
    def test_are_loaded(self, name, kind, size):
        source = load(f"project/train.py:{name}")
        assert isinstance(source, kind)
        x, _ = next(source.batches(8, 1, torch.Generator()))
        assert x.shape == (size, 3)

    def test_wrong_kinds_are_named_as_given(self):
        with pytest.raises(ValueError, match=r"project/train.py:number is of type int"):
            load("project/train.py:number")

    def test_a_file_without_name(self):
        with pytest.raises(ValueError, match=r"Write project/train.py:name"):
            load("project/train.py")


@pytest.mark.parametrize("spec", ["imagenet", "", "Digits!", "mnist-fashion"])
def test_unknown_names_list_the_known_ones(spec):
    with pytest.raises(ValueError, match="There are no data named") as caught:
        load(spec)
    for known in (
        "digits",
        "fashion-mnist",
        "mnist",
        "cifar10",
        "cifar100",
        "random:SHAPE:CLASSES",
        "file.py:name",
        "package.module:name",
    ):
        assert known in str(caught.value)


def test_a_near_miss_is_recognised():
    with pytest.raises(ValueError, match=r"Did you mean 'fashion-mnist'\?"):
        load("fashion_mnist")


@pytest.mark.parametrize("read", [load, split])
@pytest.mark.parametrize("kind", [str, Path])
def test_a_missing_folder_is_refused(read, kind):
    with pytest.raises(ValueError, match="no folder 'nowhere'"):
        read("mnist", data_dir=kind("nowhere"))


class TestFolders:
    def test_its_name_may_be_a_string(self, tmp_path):
        write_pair(tmp_path)
        assert len(load("mnist", data_dir=str(tmp_path))) == 6

    def test_the_environment_variable_names_one(self, tmp_path, monkeypatch):
        write_pair(tmp_path / "own")
        monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "own"))
        assert len(load("mnist")) == 6

    def test_a_given_one_takes_the_place_of_the_variable(self, tmp_path, monkeypatch):
        write_pair(tmp_path / "own")
        write_pair(tmp_path / "given", count=7)
        monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "own"))
        assert len(load("mnist", data_dir=tmp_path / "given")) == 7
