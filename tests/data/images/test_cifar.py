import io
import pickle
import struct
import tarfile

import numpy as np
import pytest
import torch

from equipoise.data import DataNotFoundError, load
from equipoise.data.images.cifar import restricted_loads


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))


def images(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)


def part(data, labels, key=b"labels", protocol=2):
    return pickle.dumps({b"data": data, key: labels}, protocol=protocol)


def cifar10_parts(count=4):
    return {
        f"cifar-10-batches-py/data_batch_{n}": part(images(count, n), [n] * count)
        for n in range(1, 6)
    }


def write_folder(root, parts):
    for name, content in parts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def write_archive(path, parts):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, content in parts.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def written_by_python2(pixels, labels):
    """Opcode by opcode what Python 2's cPickle wrote into the published archives."""

    def text(value):
        return b"T" + struct.pack("<i", len(value)) + value

    def integer(value):
        return b"J" + struct.pack("<i", value)

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n"
        + (b"(" + integer(0) + b"t" + text(b"b") + b"tR(" + integer(1))
        + (b"(" + integer(pixels.shape[0]) + integer(pixels.shape[1]) + b"t")
        + (b"cnumpy\ndtype\n(" + text(b"u1") + integer(0) + integer(1) + b"tR")
        + (b"(" + integer(3) + text(b"|") + b"NNN" + integer(-1) * 2 + integer(0) + b"tb")
        + (b"\x89" + text(pixels.tobytes()) + b"tb")
    )
    numbers = b"](" + b"".join(map(integer, labels)) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + numbers + b"u."


class TestCifar10:
    @pytest.mark.parametrize("form", ["folder", "archive", "cached archive"])
    def test_every_form_gives_the_same(self, tmp_path, form):
        data_dir = tmp_path
        if form == "folder":
            write_folder(tmp_path, cifar10_parts())
        elif form == "archive":
            write_archive(tmp_path / "cifar-10-python.tar.gz", cifar10_parts())
        else:
            data_dir = None
            where = tmp_path / "cache" / "cifar10" / "cifar-10-python.tar.gz"
            write_archive(where, cifar10_parts())
        samples = load("cifar10", data_dir=data_dir)
        assert samples.inputs.shape == (20, 3, 32, 32)
        assert samples.targets.tolist() == [n for n in range(1, 6) for _ in range(4)]
        assert (samples.name, samples.classes) == ("cifar10", 10)

    def test_channels_are_standardised_each_by_itself(self, tmp_path):
        parts = cifar10_parts()
        dark = images(4, 1)
        dark[:, :1024] //= 16
        parts["cifar-10-batches-py/data_batch_1"] = part(dark, [0] * 4)
        write_folder(tmp_path, parts)
        inputs = load("cifar10", data_dir=tmp_path).inputs
        assert inputs.dtype == torch.float32
        for channel in inputs.double().unbind(1):
            # float32 rounding over 2·10⁴ pixels; measured 5·10⁻⁸.
            assert abs(channel.mean()) < 1e-6
            assert abs(channel.std(correction=0) - 1) < 1e-6

    def test_pixels_are_red_green_blue_planes(self, tmp_path):
        parts = cifar10_parts()
        write_folder(tmp_path, parts)
        inputs = load("cifar10", data_dir=tmp_path).inputs
        raw = torch.from_numpy(images(4, 1)).double()[0].reshape(3, 32, 32)
        for plane, standard in zip(raw, inputs[0].double(), strict=True):
            correlation = torch.corrcoef(torch.stack([plane.flatten(), standard.flatten()]))
            assert correlation[0, 1] > 1 - 1e-9

    def test_nowhere(self, tmp_path):
        with pytest.raises(DataNotFoundError, match=r"CIFAR-10 was not found: .*data_dir="):
            load("cifar10", data_dir=tmp_path)

    def test_incomplete_folder(self, tmp_path):
        parts = cifar10_parts()
        del parts["cifar-10-batches-py/data_batch_3"]
        write_folder(tmp_path, parts)
        with pytest.raises(ValueError, match=r"lacks data_batch_3; extract"):
            load("cifar10", data_dir=tmp_path)

    def test_incomplete_archive(self, tmp_path):
        write_archive(tmp_path / "cifar-10-python.tar.gz", {"other": b""})
        with pytest.raises(ValueError, match=r"lacks cifar-10-batches-py/data_batch_1"):
            load("cifar10", data_dir=tmp_path)

    @pytest.mark.parametrize("cut", [slice(0, 400), slice(0, -4000), slice(5, None)])
    def test_damaged_archive(self, tmp_path, cut):
        archive = tmp_path / "cifar-10-python.tar.gz"
        write_archive(archive, cifar10_parts())
        archive.write_bytes(archive.read_bytes()[cut])
        with pytest.raises(ValueError, match=r"cifar-10-python.tar.gz is a damaged archive"):
            load("cifar10", data_dir=tmp_path)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (pickle.dumps([1]), r"data_batch_2 must hold the keys .* got list"),
            (pickle.dumps({b"data": 1}), r"must hold the keys"),
            (part(images(2).astype(np.int32), [1, 1]), r"got int32 of shape \[2, 3072\]"),
            (part(images(2)[:, :9], [1, 1]), r"got uint8 of shape \[2, 9\]"),
            (part(b"bytes", [1, 1]), r"got bytes of shape \[\]"),
            (part(images(2), [1, 1, 1]), r"holds 2 images but 3 labels"),
            (part(images(2), [1, b"x"]), r"list of integer labels"),
            (part(images(2), [1, 10]), r"labels from 1 to 10; its 10 classes"),
            (b"\x80\x02}(nonsense", r"data_batch_2 is not a readable pickle"),
            (b"", r"not a readable pickle"),
        ],
    )
    def test_damaged_part(self, tmp_path, content, message):
        write_folder(tmp_path, {**cifar10_parts(), "cifar-10-batches-py/data_batch_2": content})
        with pytest.raises(ValueError, match=message):
            load("cifar10", data_dir=tmp_path)

    def test_a_constant_channel_has_no_scale(self, tmp_path):
        blank = part(np.zeros((4, 3072), np.uint8), [0] * 4)
        write_folder(tmp_path, dict.fromkeys(cifar10_parts(), blank))
        with pytest.raises(ValueError, match="channel 0 is constant"):
            load("cifar10", data_dir=tmp_path)


def test_cifar100_uses_fine_labels(tmp_path):
    content = pickle.dumps(
        {b"data": images(3), b"fine_labels": [99, 0, 5], b"coarse_labels": [1, 1, 1]},
        protocol=2,
    )
    write_archive(tmp_path / "cifar-100-python.tar.gz", {"cifar-100-python/train": content})
    samples = load("cifar100", data_dir=tmp_path)
    assert samples.targets.tolist() == [99, 0, 5]
    assert samples.classes == 100


class Payload:
    def __init__(self, function, *arguments):
        self.how = function, arguments

    def __reduce__(self):
        return self.how


class TestRestrictedPickles:
    @pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
    def test_arrays_pass(self, protocol):
        data = images(2)
        found = restricted_loads(part(data, [1, 2], protocol=protocol), "here")
        assert np.array_equal(found[b"data"], data)
        assert found[b"labels"] == [1, 2]

    def test_the_published_archives_form_passes(self):
        data = images(2)
        found = restricted_loads(written_by_python2(data, [7, 300]), "here")
        assert np.array_equal(found[b"data"], data)
        assert found[b"labels"] == [7, 300]

    @pytest.mark.parametrize("protocol", [0, 2, 4])
    def test_programs_are_refused_and_not_run(self, tmp_path, protocol):
        """The payload would leave a file behind, and does so in the twin below."""
        target = tmp_path / "executed"
        payload = pickle.dumps({b"data": Payload(open, str(target), "w")}, protocol=protocol)
        with pytest.raises(ValueError, match=r"here asks to load \w+.open, which no CIFAR"):
            restricted_loads(payload, "here")
        assert not target.exists()

    def test_twin_the_payload_works_without_restriction(self, tmp_path):
        target = tmp_path / "executed"
        pickle.loads(pickle.dumps(Payload(open, str(target), "w"))).close()
        assert target.exists()

    @pytest.mark.parametrize(
        "payload",
        [
            Payload(eval, "1 + 1"),
            Payload(getattr, "text", "upper"),
            Payload(__import__, "os"),
            Payload(np.load, "somewhere"),
            np.random.default_rng(0),
        ],
    )
    def test_neither_builtins_nor_the_rest_of_numpy(self, payload):
        with pytest.raises(ValueError, match=r"here asks to load"):
            restricted_loads(pickle.dumps(payload, protocol=2), "here")

    def test_codecs_other_than_latin1(self):
        payload = b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x04\x00\x00\x00zlib\x86R."
        with pytest.raises(ValueError, match=r"asks to load the codec 'zlib'"):
            restricted_loads(payload, "here")
