"""Exchange of normalisers: which functions agree, what is kept, what is skipped and why."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.testing import assert_close

from equipoise import layers
from equipoise.layers import RenormSchedule, convert
from equipoise.layers.kinds import SOURCES, TARGETS
from support.cases import each


def inputs(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Residual(nn.Module):
    """Nested, with a normaliser held under two names."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(6, 6, 1), self.first[1])
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(54, 4), nn.BatchNorm1d(4))

    def forward(self, x):
        x = self.first(x)
        return self.head(x + self.second(x))


@pytest.fixture
def trained():
    """A model whose γ, β and statistics are not their initial values."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Residual()
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.weight.uniform_(0.5, 1.5)
                    module.bias.uniform_(-1, 1)
    for seed in range(3):
        model(inputs(8, 3, 5, 5, seed=seed))
    return model


X = inputs(5, 3, 5, 5, seed=9)


class TestFunction:
    """Where the formulas agree, so do the models."""

    @pytest.mark.parametrize(
        "to", ["batch", "batch_renorm", "ghost", "four_things", "noisy", "synchronised"]
    )
    def test_batch_norms_agree_in_evaluation(self, trained, to):
        found = convert(trained.eval(), "batch", to).model
        assert_close(found(X), trained(X), rtol=0, atol=1e-5)

    @pytest.mark.parametrize("to", ["group", "none"])
    def test_other_kinds_do_not(self, trained, to):
        found = convert(trained.eval(), "batch", to).model
        assert (found(X) - trained(X)).abs().max() > 0.1

    @pytest.mark.parametrize(
        "to", ["batch_renorm", "ghost", "four_things", "noisy", "synchronised"]
    )
    def test_there_and_back_is_the_same_model(self, trained, to):
        back = convert(convert(trained, "batch", to).model, to, "batch").model
        assert str(back) == str(trained)
        assert_close(back.state_dict(), trained.state_dict(), rtol=0, atol=0)
        assert torch.equal(back(X), trained(X))

    def test_one_group_is_layer_norm(self):
        layer, x = nn.BatchNorm1d(6), inputs(4, 6)
        found = convert(layer, "batch", "layer").model
        assert_close(found(x), nn.functional.layer_norm(x, (6,)))

    def test_as_many_groups_as_channels_is_instance_norm(self):
        layer, x = nn.BatchNorm2d(6), inputs(4, 6, 3, 3)
        instance = convert(layer, "batch", "instance").model
        group = convert(layer, "batch", "group", groups=6).model
        assert_close(instance(x), group(x))

    def test_rms_norm_of_features(self):
        x = inputs(4, 6)
        found = convert(nn.BatchNorm1d(6), "batch", "rms", dims=0).model
        assert_close(found(x), x * (x.square().mean(1, keepdim=True) + 1e-5).rsqrt())


@pytest.mark.parametrize("dims", [0, 2])
@pytest.mark.parametrize("from_", SOURCES)
def test_every_pair_runs_or_is_skipped(from_, dims):
    """γ and β stay the same parameters, and no parameter is added."""
    dims = 1 if from_ == "instance" and dims == 0 else dims
    for to in TARGETS:
        old = example(from_, dims)
        before = dict(old.named_parameters())
        result = convert(old, from_, to, dims=dims, inplace=True)
        assert bool(result.skipped) == is_misfit(from_, to, dims), to
        if result.skipped:
            assert result.model is old
            continue
        (change,) = result.changed
        after = dict(result.model.named_parameters())
        assert all(before[name] is parameter for name, parameter in after.items()), to
        assert set(before) - set(after) == set(change.lost) & {"weight", "bias"}, to
        positions = (3,) * dims
        shape = (4, *positions, 6) if from_ in CHANNELS_LAST else (4, 6, *positions)
        assert result.model(inputs(*shape)).shape == shape, to


CHANNELS_LAST = ("layer", "rms")


def is_misfit(from_, to, dims):
    """Positions stand where the new layer expects channels, or there are none."""
    if dims == 0:
        return to == "instance"
    if from_ in CHANNELS_LAST:
        return to not in (*CHANNELS_LAST, "none")
    return to == "rms"


def example(kind, dims):
    classes = SOURCES[kind].classes
    made = classes[max(dims, 1) - 1] if len(classes) == 3 else classes[0]
    sizes = (2, 6) if kind == "group" else (6,)
    return made(*sizes, affine=True) if kind == "instance" else made(*sizes)


class TestConversion:
    def test_names_kept_and_lost(self, trained):
        result = convert(trained, "batch", "group", groups=4)
        first, head = result.changed
        assert first.names == ("first.1", "second.1")
        assert first.kept == ("weight", "bias")
        assert first.lost == ("running_mean", "running_var", "num_batches_tracked")
        assert head.names == ("head.2",)
        assert result.skipped == ()
        assert str(result).startswith("'first.1', 'second.1': BatchNorm2d(6, ")
        assert result.model.first[1].num_groups == 2  # the common divisor of 4 and 6
        assert result.model.head[2].num_groups == 4

    def test_says_when_statistics_start_at_0_and_1(self):
        (change,) = convert(nn.GroupNorm(2, 6), "group", "batch", dims=2).changed
        assert "train before evaluation" in change.note
        assert change.note in str(change)

    def test_instance_norm_averages_other_variances(self):
        old = nn.InstanceNorm2d(6, affine=True, track_running_stats=True)
        old(inputs(4, 6, 3, 3))
        (change,) = convert(old, "instance", "batch").changed
        assert change.lost == ("running_mean", "running_var", "num_batches_tracked")
        assert "train before evaluation" in change.note

    def test_says_nothing_where_they_are_passed_on(self, trained):
        (change, _) = convert(trained, "batch", "batch_renorm").changed
        assert change.lost == ()
        assert change.note == ""

    def test_statistics_that_average_something_else_start_anew_together(self, trained):
        def lp_norm(old):
            return layers.LpNorm(old.channels, p=1)

        result = convert(trained, "batch", lp_norm)
        assert result.changed[0].kept == ("weight", "bias")
        assert "train before evaluation" in result.changed[0].note
        assert result.model.first[1].running_mean.eq(0).all()

    def test_a_model_without_such_layers(self):
        result = convert(nn.Linear(2, 2), "batch", "none")
        assert (result.changed, result.skipped) == ((), ())
        assert str(result) == "no layer of that kind"


class TestModel:
    def test_a_copy_by_default(self, trained):
        before = copy.deepcopy(trained.state_dict())
        converted = convert(trained, "batch", "group").model
        assert isinstance(trained.first[1], nn.BatchNorm2d)
        with torch.no_grad():
            converted.first[1].weight.zero_()
        assert_close(trained.state_dict(), before, rtol=0, atol=0)

    def test_in_place_keeps_the_optimizer_in_force(self, trained):
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
        assert convert(trained, "batch", "group", inplace=True).model is trained
        before = trained.first[1].weight.clone()
        trained(X).square().sum().backward()
        optimizer.step()
        assert isinstance(trained.first[1], nn.GroupNorm)
        assert not torch.equal(trained.first[1].weight, before)

    def test_shared_modules_stay_shared(self, trained):
        found = convert(trained, "batch", "ghost").model
        assert found.first[1] is found.second[1]

    def test_shared_parameters_stay_shared(self):
        model = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4))
        model[1].weight = model[0].weight
        found = convert(model, "batch", "group").model
        assert found[0].weight is found[1].weight
        assert found[0].bias is not found[1].bias

    def test_a_layer_by_itself(self):
        layer = nn.BatchNorm2d(6)
        result = convert(layer, "batch", "none", inplace=True)
        assert isinstance(result.model, nn.Identity)
        assert result.changed[0].names == ("",)

    def test_modes_flags_and_options(self, trained):
        trained.first.eval()
        trained.head[2].bias.requires_grad_(False)
        trained.head[2].eps, trained.head[2].momentum = 0.01, None
        found = convert(trained, "batch", "batch_renorm").model
        assert not found.first[1].training
        assert found.head[2].training
        assert not found.head[2].bias.requires_grad
        assert found.head[2].weight.requires_grad
        assert (found.head[2].eps, found.head[2].momentum) == (0.01, None)

    @pytest.mark.parametrize("to", ["group", "batch_renorm"])
    def test_devices_and_types(self, to):
        for options in ({"dtype": torch.bfloat16}, {"device": "meta"}):
            layer = nn.BatchNorm2d(6, **options)
            found = convert(layer, "batch", to).model
            assert (found.weight.dtype, found.weight.device) == (
                layer.weight.dtype,
                layer.weight.device,
            )

    @pytest.mark.parametrize("to", ["group", "batch_renorm"])
    def test_without_parameters_or_statistics(self, to):
        layer = nn.BatchNorm2d(6, affine=False, track_running_stats=False)
        found = convert(layer, "batch", to).model
        assert (list(found.parameters()), list(found.buffers())) == ([], [])

    @pytest.mark.parametrize("to", ["group", "batch_renorm"])
    def test_gamma_without_beta(self, to):
        layer = nn.BatchNorm2d(6)
        layer.register_parameter("bias", None)
        found = convert(layer, "batch", to).model
        assert [name for name, _ in found.named_parameters()] == ["weight"]
        assert found(inputs(4, 6, 3, 3)).shape == (4, 6, 3, 3)

    def test_options_of_the_new_layers(self, trained):
        schedule = RenormSchedule.constant()
        assert convert(trained, "batch", "batch_renorm", schedule=schedule).model.first[
            1
        ].schedule is (schedule)
        four = convert(
            trained, "batch", "four_things", groups=2, virtual_batch_size=4, example_weight=0.1
        ).model.first[1]
        assert (four.groups, four.virtual_batch_size, four.example_weight) == (2, 4, 0.1)
        assert convert(trained, "batch", "ghost").model.first[1].virtual_batch_size == 32

    def test_several_kinds_at_once(self):
        model = nn.Sequential(nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.LayerNorm(4))
        found = convert(model, ["batch", "group"], "none").model
        assert [type(layer) for layer in found] == [nn.Identity, nn.Identity, nn.LayerNorm]

    def test_a_function_makes_the_new_layer(self, trained):
        result = convert(trained, "batch", lambda old: nn.GroupNorm(old.channels, old.channels))
        assert result.model.first[1].num_groups == 6
        assert torch.equal(result.model.first[1].weight, trained.first[1].weight)


def test_an_error_midway_leaves_the_model_as_it_was(trained):
    def fail_late(old):
        if old.channels == 4:
            return "no module"
        return nn.Identity()

    with pytest.raises(TypeError, match=r"must return a module; got 'no module' for 'head\.2'"):
        convert(trained, "batch", fail_late, inplace=True)
    assert isinstance(trained.first[1], nn.BatchNorm2d)


class BatchNormAct2d(nn.BatchNorm2d):
    """More than a batch norm."""

    def forward(self, x):
        return super().forward(x).relu()


def hooked():
    layer = nn.BatchNorm2d(6)
    layer.register_forward_hook(lambda module, args, output: None)
    return layer


class TestSkipped:
    @each(
        ("layer", "from_", "to", "reason"),
        [
            (BatchNormAct2d(6), "batch", "group", "it is a subclass"),
            (nn.SyncBatchNorm(6), "batch", "group", "convert before SyncBatchNorm does"),
            (nn.LazyBatchNorm2d(), "batch", "group", "run one batch through the model first"),
            (hooked(), "batch", "group", "it has hooks"),
            (
                parametrizations.spectral_norm(nn.BatchNorm2d(6)),
                "batch",
                "group",
                "it has parametrisations",
            ),
            (nn.GroupNorm(2, 6), "group", "batch", "pass dims="),
            (nn.LayerNorm(6), "layer", "batch", "pass dims=0"),
            (nn.LayerNorm((6, 3)), "layer", "rms", "2 dimensions at once"),
            (nn.BatchNorm1d(6), "batch", "rms", "pass dims=0"),
            (nn.BatchNorm1d(6), "batch", "instance", "pass dims=1"),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else value,
    )
    def test_says_why(self, layer, from_, to, reason):
        model = nn.Sequential(layer)
        result = convert(model, from_, to, inplace=True)
        assert model[0] is layer
        (skipped,) = result.skipped
        assert reason in skipped.reason
        assert str(skipped) == f"'0': {type(layer).__name__} stays: {skipped.reason}"

    def test_other_kinds_are_not_mentioned(self):
        model = nn.Sequential(layers.BatchRenorm1d(4), nn.InstanceNorm1d(4), nn.GroupNorm(2, 4))
        assert convert(model, "batch", "none").skipped == ()


class TestErrors:
    @pytest.mark.parametrize("kind", ["BatchNorm2d", "none", ""])
    def test_unknown_source(self, kind):
        with pytest.raises(ValueError, match="from_ must be among batch, batch_renorm"):
            convert(nn.Identity(), kind, "none")

    @pytest.mark.parametrize("kinds", [(nn.BatchNorm2d, "group"), ("batch", nn.GroupNorm)])
    def test_classes_in_the_place_of_kinds(self, kinds):
        with pytest.raises(ValueError, match=r"is the class .*; give a kind, such as 'batch' or"):
            convert(nn.BatchNorm2d(3), *kinds)

    def test_unknown_target(self):
        with pytest.raises(ValueError, match=r"to must be one of batch, .*; got 'gn'"):
            convert(nn.Identity(), "batch", "gn")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"groups": 0}, "groups must be a whole number of at least 1"),
            (
                {"virtual_batch_size": -1},
                "virtual_batch_size must be a whole number of at least 1",
            ),
            ({"example_weight": 2.0}, "example_weight must be a number in"),
            ({"dims": 4}, "dims must be 0, 1, 2 or 3; got 4"),
        ],
    )
    def test_options(self, options, message):
        with pytest.raises(ValueError, match=message):
            convert(nn.Identity(), "batch", "group", **options)

    @each("to", ["none", "layer", lambda source: nn.Identity()])
    @each(
        ("options", "takers"),
        [
            ({"groups": 2}, "'group' and 'four_things'"),
            ({"virtual_batch_size": 4}, "'ghost' and 'four_things'"),
            ({"example_weight": 0.5}, "'four_things'"),
            ({"schedule": layers.RenormSchedule()}, "'batch_renorm'"),
            ({"process_group": object()}, "'synchronised'"),
        ],
    )
    def test_options_of_other_targets(self, to, options, takers):
        (name,) = options
        with pytest.raises(ValueError, match=f"{name} is an option of {takers}, and to is"):
            convert(nn.Identity(), "batch", to, **options)

    def test_lp_norm_is_of_no_kind_and_stays(self):
        model = nn.Sequential(layers.LpNorm(4, p=1))
        result = convert(model, SOURCES, "none", inplace=True)
        assert isinstance(model[0], layers.LpNorm)
        assert (result.changed, result.skipped) == ((), ())
