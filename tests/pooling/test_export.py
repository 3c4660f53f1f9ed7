"""Heads as exported programs and ONNX models, for any batch and size of maps."""

import io

import pytest
import torch
from onnxruntime import InferenceSession
from torch.export import Dim
from torch.testing import assert_close

from support.pooling_family import CHANNELS, FAMILY, build, maps

# PyTorch's exporter calls what PyTorch itself deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
SIZES = [(1, (2, 2)), (5, (6, 7)), (2, (9, 3))]


# One head for each set of operators.
ALONE = [
    "bilinear",
    "RUN",
    "RUN mean",
    "RUN given",
    "iSQRT",
    "power",
    "log",
    "sketch",
    "sketch fft",
    "maclaurin",
    "maclaurin direct",
]
# One head for each way in which a mask enters; roots are of the same matrix.
MASKED = ["bilinear", "RUN", "RUN mean", "sketch", "sketch fft", "maclaurin direct"]


class Heads(torch.nn.ModuleDict):
    """Several heads on the same maps, because every export takes a while to start."""

    def forward(self, x, mask=None):
        return {name: head(x, mask) for name, head in self.items()}


def heads_named(names):
    return Heads({name: build(FAMILY[name], dtype=torch.float32) for name in names})


def assert_same(found, expected):
    for name, vectors in expected.items():
        assert_close(found[name], vectors.detach(), rtol=0, atol=3e-6, msg=name)


class TestExport:
    def test_one_program_for_all_sizes(self):
        heads = heads_named(ALONE)
        sizes = {0: Dim("batch", min=1), 2: Dim("height", min=1), 3: Dim("width", min=1)}
        x = maps(dtype=torch.float32)
        program = torch.export.export(heads, (x,), dynamic_shapes={"x": sizes}).module()
        for samples, size in SIZES:
            x = maps(samples, size, dtype=torch.float32)
            assert_same(program(x), heads(x))

    def test_one_program_for_all_sizes_with_a_mask(self):
        heads = heads_named(MASKED)
        batch, height, width = (Dim(name, min=1) for name in ("batch", "height", "width"))
        x, mask = maps(dtype=torch.float32), torch.ones(3, 3, 4, dtype=torch.bool)
        shapes = {"x": {0: batch, 2: height, 3: width}, "mask": {0: batch, 1: height, 2: width}}
        program = torch.export.export(heads, (x, mask), dynamic_shapes=shapes).module()
        for samples, size in SIZES:
            x, mask = maps(samples, size, dtype=torch.float32), torch.rand(samples, *size) < 0.7
            assert_same(program(x, mask), heads(x, mask))


# PyTorch 2.12 warns of the bytes that it loads.
@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")
def test_programs_are_saved():
    heads, file = heads_named(["bilinear", "RUN", "sketch"]), io.BytesIO()
    x = maps(dtype=torch.float32)
    torch.export.save(torch.export.export(heads, (x,)), file)
    file.seek(0)
    assert_same(torch.export.load(file).module()(x), heads(x))


# One head for each set of operators; ONNX has no eigendecomposition. Sketches hold a RUN head, and
# one head reduces channels.
EXPORTED = ["bilinear", "RUN mean", "iSQRT", "sketch", "sketch fft", "maclaurin direct"]


# The exporter's own warnings, which differ from version to version.
@pytest.mark.filterwarnings("ignore")
def test_one_onnx_model_for_all_sizes():
    heads = heads_named(EXPORTED)
    heads["bilinear"] = build(FAMILY["bilinear"], dtype=torch.float32, reduction=3)
    sizes = {0: Dim("batch"), 2: Dim("height"), 3: Dim("width")}
    program = torch.onnx.export(
        heads,
        (maps(dtype=torch.float32),),
        dynamic_shapes={"x": sizes},
        output_names=EXPORTED,
        dynamo=True,
        verbose=False,
    )
    session = InferenceSession(program.model_proto.SerializeToString())
    (given,) = session.get_inputs()
    for samples, size in SIZES:
        x = maps(samples, size, dtype=torch.float32)
        outputs = map(torch.from_numpy, session.run(EXPORTED, {given.name: x.numpy()}))
        assert_same(dict(zip(EXPORTED, outputs, strict=True)), heads(x))


@pytest.mark.parametrize("name", ["bilinear", "sketch"])
def test_the_root_of_an_exported_model_is_the_same_root(name, monkeypatch):
    """ONNX has no copysign, so signed roots are computed by another formula there."""
    head, x = build(FAMILY[name]), maps() - 0.5
    expected = head(x)
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    assert_close(head(x), expected, rtol=0, atol=1e-14)
    assert head(torch.zeros(1, CHANNELS, 2, 2)).isfinite().all()
