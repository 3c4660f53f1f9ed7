"""The contract of every head as a function; a newcomer joins ``FAMILY`` in the support module."""

import pytest
import torch
from torch.testing import assert_close

from equipoise import pooling
from support.cases import each
from support.pooling_family import CHANNELS, FAMILY, both_ways, build, every, every_reducible, maps

EXACT = {"rtol": 1e-11, "atol": 1e-12}


def mask_of(x):
    """Two rows of positions in the first sample, one column less in the others."""
    mask = torch.ones(len(x), *x.shape[2:], dtype=torch.bool)
    mask[0, 2:] = False
    mask[1:, :, -1] = False
    return mask


@every
class TestGradients:
    def test_agree_with_differences(self, member):
        x = maps(2, (2, 3)).requires_grad_()
        assert torch.autograd.gradcheck(build(member), x)

    def test_with_a_mask(self, member):
        x = maps(2, (3, 2)).requires_grad_()
        mask = torch.tensor([[[1, 1], [1, 0], [0, 1]], [[0, 1], [1, 1], [1, 1]]]).bool()
        assert torch.autograd.gradcheck(build(member), (x, mask), fast_mode=True)

    def test_of_the_second_order(self, member):
        x = maps(1, (2, 3), channels=4).requires_grad_()
        assert torch.autograd.gradgradcheck(build(member), x, fast_mode=True)

    def test_per_sample(self, member):
        """By torch.func."""
        head, x = build(member), maps()
        found = torch.func.vmap(torch.func.grad(lambda one: head(one[None]).sum()))(x)
        (expected,) = torch.autograd.grad(head(x.requires_grad_()).sum(), x)
        assert_close(found, expected, **EXACT)


@every
class TestLayouts:
    def test_agree(self, member):
        x = maps()
        expected = build(member)(x)
        tokens, last = x.flatten(2).mT, x.movedim(1, -1)
        assert_close(build(member, layout="tokens")(tokens), expected, **EXACT)
        assert_close(build(member, layout="channels_last")(last), expected, **EXACT)
        prefixed = torch.cat([torch.full((3, 2, CHANNELS), torch.nan), tokens], 1)
        head = build(member, layout="tokens", prefix_tokens=2)
        assert_close(head(prefixed), expected, **EXACT)

    @each("size", [(12,), (2, 3, 2)], ids=["line", "volume"])
    def test_any_number_of_dimensions_of_positions(self, member, size):
        x = maps()
        expected = build(member)(x)
        assert_close(build(member)(x.reshape(3, CHANNELS, *size)), expected, **EXACT)
        last = x.reshape(3, CHANNELS, *size).movedim(1, -1)
        assert_close(build(member, layout="channels_last")(last), expected, **EXACT)

    def test_memory_format_and_gradient_of_it(self, member):
        found = both_ways(build(member), maps().to(memory_format=torch.channels_last))
        assert_close(found, both_ways(build(member), maps()), **EXACT)

    def test_masks_follow(self, member):
        x = maps()
        mask = mask_of(x)
        expected = build(member)(x, mask)
        head = build(member, layout="tokens", prefix_tokens=1)
        tokens = torch.cat([torch.zeros(3, 1, CHANNELS), x.flatten(2).mT], 1)
        flat = torch.cat([torch.ones(3, 1, dtype=torch.bool), mask.flatten(1)], 1)
        assert_close(head(tokens, flat), expected, **EXACT)
        head = build(member, layout="channels_last")
        assert_close(head(x.movedim(1, -1), mask), expected, **EXACT)


@every
@each("centred", [False, True])
class TestMasks:
    def test_a_mask_is_a_crop(self, member, centred):
        head, x = build(member, centred=centred), maps()
        spoilt = x.masked_fill(~mask_of(x)[:, None], torch.nan)
        y, gradient = both_ways(head, spoilt, mask_of(x))
        for n, crop in enumerate((x[:1, :, :2], x[1:2, :, :, :-1], x[2:, :, :, :-1])):
            assert_close(y[n : n + 1], head(crop), **EXACT)
        assert (gradient.movedim(1, -1)[~mask_of(x)] == 0).all()
        assert gradient.isfinite().all()

    def test_a_mask_differs_from_zeros(self, member, centred):
        """Zeros count as positions, so the result differs without the mask."""
        head, x = build(member, centred=centred, unit_norm=False), maps()
        spoilt = x.masked_fill(~mask_of(x)[:, None], 0.0)
        assert not torch.allclose(head(spoilt), head(spoilt, mask_of(x)))

    def test_a_sample_without_positions_is_a_zero_sample(self, member, centred):
        head, x = build(member, centred=centred), maps(2)
        mask = torch.tensor([True, False])[:, None, None].expand(2, 3, 4)
        y, gradient = both_ways(head, x, mask)
        assert_close(y[1:], head(torch.zeros(1, CHANNELS, 1, 1).double()), **EXACT)
        assert (gradient[1] == 0).all()
        assert_close(y[:1], head(x[:1]), **EXACT)


@every
class TestSymmetry:
    def test_the_order_of_positions_has_no_effect(self, member):
        head, x = build(member), maps()
        order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
        assert_close(head(x.flatten(2)[..., order]), head(x), **EXACT)

    def test_the_order_of_channels_matters(self, member):
        head, x = build(member), maps()
        assert not torch.allclose(head(x.flip(1)), head(x))

    def test_repeated_positions_have_no_effect(self, member):
        """Everything is an average over positions."""
        head, x = build(member), maps()
        assert_close(head(torch.cat([x, x], -1)), head(x), **EXACT)


def images(samples=4):
    return maps(samples, (14, 10), channels=CHANNELS, dtype=torch.float32)


@every
class TestSamples:
    """In evaluation, and in training without a reduction: bit by bit."""

    def test_the_order_of_samples_has_no_effect(self, member):
        head, x = build(member, dtype=torch.float32), images()
        y = head(x)
        assert torch.equal(head(x.flip(0)), y.flip(0))

    @each("bad", [0.0, torch.nan, torch.inf])
    def test_other_samples_have_no_effect(self, member, bad):
        head, x = build(member, dtype=torch.float32), images()
        good = both_ways(head, x)
        x[1] = bad
        found = both_ways(head, x)
        for mine, expected in zip(found, good, strict=True):
            assert torch.equal(mine[[0, 2, 3]], expected[[0, 2, 3]])
            assert not torch.equal(mine[1], expected[1])
        if bad == 0:
            assert found[0].isfinite().all()
            assert found[1].isfinite().all()

    def test_an_entry_that_is_not_finite_shows(self, member):
        head, x = build(member, dtype=torch.float32), images()
        x[1, 2, 0, 0] = torch.nan
        y, _ = both_ways(head, x)
        assert y[1].isnan().any()
        assert y[[0, 2, 3]].isfinite().all()

    def test_one_by_one(self, member):
        head, x = build(member), images().double()
        assert_close(head(x), torch.cat([head(one[None]) for one in x]), **EXACT)

    def test_an_empty_batch(self, member):
        head = build(member)
        assert head(torch.zeros(0, CHANNELS, 3, 4).double()).shape == (0, head.output_dim)

    def test_no_positions(self, member):
        head = build(member)
        nothing = head(torch.zeros(2, CHANNELS, 0, 4).double())
        assert_close(nothing, head(torch.zeros(2, CHANNELS, 1, 1).double()), **EXACT)


@every_reducible
class TestReduction:
    @each("training", [False, True])
    def test_gradients_agree_with_differences(self, member, training):
        head = build(member, reduction=2, centred=True).train(training)
        x = maps(2, (2, 3)).requires_grad_()
        parameters = dict(head.named_parameters())

        def forward(x, *values):
            given = dict(zip(parameters, values, strict=True))
            return torch.func.functional_call(head, given, (x,))

        inputs = (x, *parameters.values())
        assert torch.autograd.gradcheck(forward, inputs, fast_mode=True)

    @each("training", [False, True])
    def test_a_mask_is_a_crop(self, member, training):
        """In training the statistics too are those of the valid positions."""
        x, mask = maps(2), torch.ones(2, 3, 4, dtype=torch.bool)
        mask[:, 2] = False
        spoilt = x.masked_fill(~mask[:, None], torch.nan)
        head, twin = (build(member, reduction=2).train(training) for _ in range(2))
        y, gradient = both_ways(head, spoilt, mask)
        expected, of_crop = both_ways(twin, x[:, :, :2])
        assert_close((y, gradient[:, :, :2]), (expected, of_crop), **EXACT)
        assert (gradient[:, :, 2] == 0).all()
        assert_close(head.state_dict(), twin.state_dict(), **EXACT)

    @each("bad", [0.0, torch.nan])
    def test_in_evaluation_other_samples_have_no_effect(self, member, bad):
        head, x = build(member, dtype=torch.float32, reduction=3), images()
        good = both_ways(head, x)
        x[1] = bad
        for mine, expected in zip(both_ways(head, x), good, strict=True):
            assert torch.equal(mine[[0, 2, 3]], expected[[0, 2, 3]])

    def test_layouts_agree(self, member):
        head, x = build(member, reduction=3), maps()
        for layout, given in (("tokens", x.flatten(2).mT), ("channels_last", x.movedim(1, -1))):
            found = both_ways(build(member, reduction=3, layout=layout), given)
            expected = both_ways(head, x)
            assert_close(found[0], expected[0], **EXACT)
            back = found[1].movedim(-1, 1).reshape(x.shape)
            assert_close(back, expected[1], **EXACT)


@every
@each("scale", [1e15, 1e-15])
def test_finite_at_any_scale(member, scale):
    y, gradient = both_ways(build(member, dtype=torch.float32), scale * images())
    assert y.isfinite().all()
    assert gradient.isfinite().all()
    if build(member).unit_norm and "fft" not in member.options.values():
        assert_close(y, build(member, dtype=torch.float32)(images()), rtol=1e-3, atol=1e-3)


BAD_OPTIONS = [
    ({"in_channels": 0}, "in_channels must be a whole number"),
    ({"reduction": 0}, "reduction must be a whole number"),
    ({"layout": "last"}, "layout must be one of channels_first, tokens, channels_last"),
    ({"prefix_tokens": 1}, "prefix_tokens=1 needs layout='tokens'"),
    ({"layout": "tokens", "prefix_tokens": -1}, "prefix_tokens must be"),
    ({"seed": 1, "generator": torch.Generator()}, "generator or seed, not both"),
]
BAD_MAPS = [
    ((2, CHANNELS), r"which is pooled already"),
    ((CHANNELS,), r"needs feature maps \[B, C, H, W\]"),
    ((2, 3, 4, CHANNELS), r"need 4 channels in feature maps \[B, C, H, W\]; got"),
]


@every
class TestErrors:
    def test_options(self, member):
        for options, message in BAD_OPTIONS:
            with pytest.raises(ValueError, match=message):
                member.kind(**{"in_channels": CHANNELS, **member.options, **options})

    def test_something_that_is_no_generator(self, member):
        with pytest.raises(TypeError, match=r"generator must be a torch\.Generator"):
            member.kind(CHANNELS, **{**member.options, "generator": 3})

    def test_maps(self, member):
        for shape, message in BAD_MAPS:
            with pytest.raises(ValueError, match=message):
                build(member)(torch.zeros(shape).double())

    def test_tokens_with_more_dimensions(self, member):
        with pytest.raises(ValueError, match=r"layout='tokens' needs feature maps \[B, N, C\]"):
            build(member, layout="tokens")(maps().movedim(1, -1))

    def test_integers(self, member):
        with pytest.raises(TypeError, match="feature maps must be floating point"):
            build(member)(maps().long())

    @each(
        ("change", "message"),
        [(torch.Tensor.numpy, "must be a tensor; got ndarray"), (torch.Tensor.to_sparse, "dense")],
    )
    def test_other_things_than_dense_tensors(self, member, change, message):
        with pytest.raises(TypeError, match=f"feature maps .*{message}"):
            build(member)(change(maps()))

    def test_masks(self, member):
        with pytest.raises(TypeError, match="mask must be boolean"):
            build(member)(maps(), torch.ones(3, 3, 4))
        with pytest.raises(ValueError, match=r"mask must have the shape \(3, 3, 4\)"):
            build(member)(maps(), torch.ones(3, 12, dtype=torch.bool))


def test_the_family_has_every_head():
    heads = {getattr(pooling, name) for name in pooling.__all__ if name.endswith("Pool")}
    assert {member.kind for member in FAMILY.values()} == heads
