import math
from functools import partial

import pytest
import torch
from torch import nn

from equipoise.layers import (
    BatchRenorm1d,
    FourThingsBatchNorm2d,
    GhostBatchNorm3d,
    LpNorm,
    NoisyBatchNorm1d,
    NoisyBatchNorm3d,
)
from equipoise.layers.noisy_batch_norm import ActivationNoise
from equipoise.models.norms import NORMS, make_norm, subtracts_constants
from support.cases import each

WITHOUT_POSITIONS = [kind for kind in NORMS if kind != "instance"]
# In training these do not have outputs of mean 0 and variance 1.
LP = {"l1": 1, "l2": 2, "linf": math.inf}
WITHOUT_PARAMETERS = ("none", "noise")


def images(dims, channels=8):
    generator = torch.Generator().manual_seed(0)
    shape = (6, channels, *(3,) * dims)
    return 2 * torch.randn(shape, dtype=torch.float64, generator=generator) + 1


@each("dims", [0, 1, 2, 3])
@each("kind", WITHOUT_POSITIONS)
def test_every_kind_normalises_inputs_of_any_dimensions(kind, dims):
    layer = make_norm(kind, 8, dims=dims, group_size=4).double()
    x = images(dims)
    y = layer(x)
    assert y.shape == x.shape
    if kind == "none":
        assert torch.equal(y, x)
    elif kind not in (*LP, "noisy", "noise"):
        # Every mean is taken over as many values as any other of its layer. Renormalisation
        # starts as batch norm.
        assert abs(y.mean()) < 1e-12
        assert abs(y.square().mean() - 1) < 1e-4  # ε / σ², 10⁻⁵ over at least 0.3


@each("dims", [0, 1, 2, 3])
@each("kind", LP)
def test_lp_norms_divide_by_the_size_before_the_mean(kind, dims):
    x = images(dims)
    y = make_norm(kind, 8, dims=dims, eps=0.0).double()(x)
    x, y = (t.transpose(0, 1).flatten(1) for t in (x, y))
    size = x.abs().max(1).values if kind == "linf" else x.abs().pow(LP[kind]).mean(1)
    size = size if kind == "linf" else size ** (1 / LP[kind])
    torch.testing.assert_close(y, (x - x.mean(1, keepdim=True)) / size[:, None])


@each("dims", [0, 1, 2, 3])
@each(("kind", "quiet"), [("noisy", "batch"), ("noise", "none")])
def test_noise_comes_in_training_only(kind, quiet, dims):
    x = images(dims)
    layer, twin = (make_norm(k, 8, dims=dims).double() for k in (kind, quiet))
    assert (layer(x) - twin(x)).abs().mean() > 0.1
    assert torch.equal(layer.eval()(x), twin.eval()(x))


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_instance_norm_normalises_positions(dims):
    y = make_norm("instance", 8, dims=dims).double()(images(dims))
    assert y.flatten(2).mean(-1).abs().max() < 1e-12


@each(
    ("kind", "dims", "expected"),
    [
        ("none", 2, nn.Identity),
        ("batch", 0, nn.BatchNorm1d),
        ("batch", 1, nn.BatchNorm1d),
        ("batch", 2, nn.BatchNorm2d),
        ("layer", 0, nn.LayerNorm),
        ("layer", 2, nn.GroupNorm),
        ("group", 2, nn.GroupNorm),
        ("instance", 3, nn.InstanceNorm3d),
        ("batch_renorm", 0, BatchRenorm1d),
        ("ghost", 3, GhostBatchNorm3d),
        ("four_things", 2, FourThingsBatchNorm2d),
        ("noisy", 0, NoisyBatchNorm1d),
        ("noisy", 3, NoisyBatchNorm3d),
        ("noise", 2, ActivationNoise),
        ("l1", 0, LpNorm),
    ],
)
def test_the_class_behind_a_name(kind, dims, expected):
    assert type(make_norm(kind, 8, dims=dims)) is expected


@each("kind", NORMS)
def test_gamma_and_beta_for_each_channel(kind):
    shapes = [tuple(p.shape) for p in make_norm(kind, 8).parameters()]
    assert shapes == ([] if kind in WITHOUT_PARAMETERS else [(8,), (8,)])


@each("kind", [k for k in NORMS if k not in (*WITHOUT_PARAMETERS, "instance")])
def test_eps_reaches_every_kind_and_momentum_those_that_have_it(kind):
    layer = make_norm(kind, 8, eps=1e-3, momentum=0.01)
    assert layer.eps == 1e-3
    assert getattr(layer, "momentum", 0.01) == 0.01


@pytest.mark.parametrize("kind", ["group", "four_things"])
class TestGroups:
    @each(("channels", "groups"), [(64, 32), (32, 32), (12, 4), (7, 1)])
    def test_32_or_as_many_as_divide(self, kind, channels, groups):
        assert _groups(make_norm(kind, channels)) == groups

    @each(("channels", "groups"), [(64, 16), (16, 4), (6, 3), (7, 7)])
    def test_of_a_size_or_its_largest_divisor(self, kind, channels, groups):
        assert _groups(make_norm(kind, channels, group_size=4)) == groups


def _groups(layer):
    return layer.num_groups if isinstance(layer, nn.GroupNorm) else layer.groups


class TestSubtractsConstants:
    """Measured: does the output stay when each channel is shifted?"""

    @pytest.mark.parametrize("kind", NORMS)
    @pytest.mark.parametrize("group_size", [1, 4])
    def test_as_claimed(self, kind, group_size):
        layer = make_norm(kind, 8, group_size=group_size).double()
        x, shift = images(2), torch.arange(8.0, dtype=torch.float64)[:, None, None]
        stays = torch.allclose(with_seed(layer, x), with_seed(layer, x + shift), rtol=0, atol=1e-9)
        # Groups of one channel are instance norm, but the claim is about the class.
        claimed = subtracts_constants(layer) or (kind == "group" and group_size == 1)
        assert claimed == stays

    @pytest.mark.parametrize("centered", [True, False])
    def test_lp_norms_do_if_centred(self, centered):
        layer = LpNorm(8, p=1, centered=centered).double()
        x = images(2)
        assert torch.allclose(layer(x), layer(x + 3)) == centered == subtracts_constants(layer)


def with_seed(layer, x):
    """The same noise in every call."""
    torch.manual_seed(0)
    return layer(x)


class TestFunctions:
    def test_a_class_or_a_partial(self):
        assert make_norm(nn.BatchNorm3d, 5).num_features == 5
        made = make_norm(partial(make_norm, "group", dims=0, group_size=5), 10)
        assert made.num_groups == 2

    @pytest.mark.parametrize("wrong", [nn.BatchNorm1d(4), lambda channels: channels])
    def test_must_make_modules(self, wrong):
        with pytest.raises(ValueError, match=r"norm must make a module.*pass the class"):
            make_norm(wrong, 4)


@pytest.mark.parametrize("unknown", ["bn", None, ["batch"]])
def test_errors_for_unknown_names_list_the_known_ones(unknown):
    with pytest.raises(ValueError, match=f"{', '.join(NORMS)}, got .* pass a function"):
        make_norm(unknown, 4)


@each(
    ("kind", "channels", "options", "message"),
    [
        ("batch", 0, {}, "channels must be"),
        ("batch", 4, {"dims": 4}, "dims must be 0 for inputs .* got 4"),
        ("group", 4, {"group_size": 0}, "group_size must be"),
        ("instance", 4, {"dims": 0}, "needs positions.*choose 'layer', 'group' or 'none'"),
        ("group", 7, {"dims": 0, "group_size": 4}, "groups of one channel.*or 'layer'"),
        ("group", 32, {"dims": 0}, "groups of one channel"),
    ],
)
def test_wrong_arguments(kind, channels, options, message):
    with pytest.raises(ValueError, match=message):
        make_norm(kind, channels, **options)
