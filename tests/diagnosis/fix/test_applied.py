"""Remedies are applied exactly, and undone exactly."""

import copy
import math
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

from equipoise.diagnosis.fix.applied import apply, change_graph, code_lines, fixed
from equipoise.diagnosis.fix.candidates import of_activations, of_norms
from equipoise.diagnosis.fix.remedy import Edit, Factor, Remedy
from equipoise.instrument.recording.tracer import trace
from equipoise.records.codec import from_plain, to_plain
from equipoise.theory.propagation.propagate import propagate
from equipoise.training.losses import cross_entropy
from support.forked_ranks import printed_by


def network(activation=nn.ReLU) -> nn.Module:
    """Two convolutions with batch norm, whose running statistics have moved."""
    torch.manual_seed(0)
    layers = []
    for fan_in in (1, 8):
        layers += [nn.Conv2d(fan_in, 8, 3, padding=1), nn.BatchNorm2d(8), activation()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 16, 3))
    model(torch.randn(4, 1, 4, 4))
    return model


class Called(nn.Module):
    """The same with functions: an activation, a gate, and an output."""

    def __init__(self, activation=torch.relu):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.gate = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(1, 8, 1)
        self.norm, self.second = nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1)
        self.head, self.activation = nn.Linear(8 * 16, 3), activation

    def forward(self, x):
        hidden = self.activation(self.norm(self.first(x))) * torch.sigmoid(self.gate(x))
        return torch.tanh(self.head(self.activation(self.second(hidden)).flatten(1)))


def batch():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 1, 4, 4, generator=generator)
    return x, torch.arange(8) % 3


def steps(model: nn.Module, attach=None, count: int = 3) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if attach is not None:
        attach(optimizer)
    losses = []
    for _ in range(count):
        loss = cross_entropy(model, batch())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


ROOT = Path(__file__).parents[3]

WEIGHTS = Edit(
    "weights",
    None,
    "smaller",
    (Factor("0.weight", 0.25), Factor("7.weight", 2.0), Factor("7.bias", 0.0)),
)
REMEDIES = [
    Remedy((Edit("shift", 0.5),)),
    Remedy((Edit("scale", 0.2),)),
    Remedy((Edit("eps", 0.1),)),
    Remedy((WEIGHTS,)),
    Remedy((Edit("activation", None, "gelu"),)),
    Remedy((Edit("activation", None, "gelu", kept=("2",)),)),
    Remedy((Edit("activation", None, "gelu", kept=("2",), also=("Sequential:tanh",)),)),
    *(
        Remedy((Edit("norm", value, choice),))
        for choice, value in (
            ("group", 2),
            ("layer", None),
            ("instance", None),
            ("batch_renorm", None),
            ("batch_renorm", 1),
            ("ghost", 4),
            ("frozen", None),
            ("none", None),
        )
    ),
    Remedy((Edit("bnp", None, "beside"),)),
    Remedy((Edit("norm", 2, "group"), Edit("shift", 0.5))),
    Remedy((Edit("norm", None, "none"), Edit("bnp", None, "beside"))),
]
every = pytest.mark.parametrize("remedy", REMEDIES, ids=lambda remedy: remedy.name)


@every
def test_undoing_restores_the_model_bit_for_bit(remedy):
    model, twin = network(), network()
    modules, parameters = list(model.modules()), list(model.parameters())
    applied = apply(model, remedy)
    cross_entropy(model, batch())  # running statistics of the new norms move
    restored = applied.undo()
    if "norm" in remedy.kinds:
        assert restored is model
        assert list(model.modules()) == modules
        assert all(p is q for p, q in zip(model.parameters(), parameters, strict=True))
        assert all(
            torch.equal(a, b)
            for a, b in zip(model.state_dict().values(), twin.state_dict().values(), strict=True)
        )
        assert steps(model) == steps(twin)
    else:  # the pass above moved the model's own running statistics
        cross_entropy(twin, batch())
        assert steps(model) == steps(twin)
    with pytest.raises(RuntimeError, match="undone before"):
        applied.undo()


@every
def test_the_model_trains_otherwise_with_it(remedy):
    if remedy.name == "norm=batch_renorm":
        pytest.skip("batch renorm starts as batch norm")
    changed = apply(network(), remedy)
    assert steps(changed.model, changed.attach) != steps(network())


@every
def test_the_records_and_names_of_remedies_can_be_read_back(remedy):
    assert from_plain(Remedy, to_plain(remedy)) == remedy
    if "weights" not in remedy.kinds:
        assert Remedy.named(remedy.name) == remedy


@every
def test_the_trace_changes_as_the_model_does(remedy):
    """What theory predicts of the edited trace is what it predicts of the edited model."""
    model = network()
    graph = trace(model, batch(), cross_entropy)
    predicted = propagate(change_graph(graph, remedy, model))
    applied = apply(model, remedy).model
    if "frozen" in remedy.name:
        applied[1].running_mean.zero_(), applied[1].running_var.fill_(1 - 1e-5)
        applied[4].running_mean.zero_(), applied[4].running_var.fill_(1 - 1e-5)
    if "ghost" in remedy.name:
        pytest.skip("the trace has the virtual batch's size, the model that of the batch")
    direct = propagate(trace(applied, batch(), cross_entropy))
    ends = [
        next(site for site in reversed(found.sites) if site.module == "7" and site.second_moment)
        for found in (predicted, direct)
    ]
    assert ends[0].second_moment == pytest.approx(ends[1].second_moment, rel=1e-3)
    assert ends[0].row_correlation == pytest.approx(ends[1].row_correlation, rel=1e-2, abs=1e-3)


def test_printed_code_trains_bit_for_bit_alike_in_a_fresh_process(tmp_path):
    """All remedies in one process, which only has the printed lines and the network's code."""
    source = textwrap.dedent(
        f"""
        import sys
        sys.path.insert(0, {str(ROOT)!r})
        import torch, equipoise
        torch.set_num_threads({torch.get_num_threads()})
        from torch import nn
        from tests.diagnosis.fix.test_applied import REMEDIES, network, steps
        from equipoise.diagnosis.fix.applied import code_lines
        for remedy in REMEDIES:
            model, code = network(), "\\n".join(code_lines(remedy))
            names = dict(model=model, nn=nn, torch=torch, equipoise=equipoise)
            def attach(optimizer):
                exec(code, names | dict(optimizer=optimizer))
            if "bnp" in remedy.kinds:
                print(steps(model, attach))
            else:
                exec(code, names)
                print(steps(names["model"]))
        """
    )
    script = tmp_path / "fresh.py"
    script.write_text(source)
    printed = printed_by(script, tmp_path)
    here = []
    for remedy in REMEDIES:
        applied = apply(network(), remedy)
        here.append(str(steps(applied.model, applied.attach)))
    assert printed.splitlines() == here


def test_a_wrapped_factory_builds_changed_models():
    build = fixed(lambda activation: network(activation), "activation=tanh norm=group:4")
    assert isinstance(build(nn.ReLU)[2], nn.Tanh)
    assert build(activation=nn.ReLU)[1].num_groups == 4


def test_proposed_groups_divide_the_channels_of_every_norm():
    model = nn.Sequential(nn.BatchNorm2d(8), nn.BatchNorm2d(12))
    groups = [one for one in of_norms(model, 8) if one.name.startswith("norm=group")]
    assert [one.name for one in groups] == ["norm=group:2"]
    assert [norm.num_groups for norm in apply(model, groups[0]).model] == [2, 2]


@pytest.mark.parametrize(
    ("remedy", "message"),
    [
        ("norm=grup:4", "norm must be one of .* got 'grup'"),
        ("norm=grup", "norm must be one of .* got 'grup'"),
        ("norm=rms", "does not fit"),
        ("norm=group:3", r"layer '1' \(1 more\) has 8 channels.*take 1, 2, 4, 8;"),
        ("norm=group:2.5", "norm=group takes a whole number of at least 1; got 2.5"),
        ("activation=relu", "no activation that could become relu"),
        ("activation=gelu:except=head", "no activation stands at 'head'"),
        ("activation=gelu:but=2", "no remedy is called"),
        ("activation=gelu:except=2:softmax", "no activation stands at '2:softmax'"),
        ("shift", "no remedy is called"),
        ("shift=nan", r"shift must be a number in \(-inf, inf\); got nan"),
        ("scale=inf", "scale must be a number in .* got inf"),
        ("eps=-1", r"eps must be a number in \[0, inf\); got -1"),
        ("batch=-3", r"batch must be a number in \[1, inf\); got -3"),
        ("batch=2.5", "batch takes a whole number of at least 1; got 2.5"),
        ("batch=256", r"made by the loader.*DataLoader\(dataset, batch_size=256\)"),
        ("bnp=junk", "bnp must be one of beside; got 'junk'"),
        ("bnp=beside:2", "bnp=beside takes no number; got 2"),
        ("norm=layer:2", "norm=layer takes no number; got 2"),
        ("norm=ghost:-8", "norm=ghost takes a whole number of at least 1; got -8"),
        ("activation=gelu:2", "activation=gelu takes no number; got 2"),
        ("shift=high", "no remedy is called"),
        (Remedy((Edit("weights", None, "", (Factor("9.weight", 2.0),)),)), "'9.weight'"),
        ("no/such/remedy.json", "holds no remedy"),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_the_model(remedy, message):
    model, twin = network(), network()
    with pytest.raises(ValueError, match=message):
        apply(model, remedy)
    assert str(model) == str(twin)


def test_functions_are_exchanged_but_gates_and_outputs_stay():
    model = Called()
    graph = trace(model, batch(), cross_entropy)
    gelu, *others = of_activations(model, graph)
    assert [one.name for one in (gelu, *others)] == [
        f"activation={name}" for name in ("gelu", "leaky_relu", "tanh")
    ]
    predicted = propagate(change_graph(graph, gelu, model))
    applied = apply(model, gelu)
    assert steps(applied.model) == steps(Called(nn.functional.gelu))
    twin = propagate(trace(Called(nn.functional.gelu), batch(), cross_entropy))
    ends = [
        next(s for s in reversed(found.sites) if s.module == "head") for found in (predicted, twin)
    ]
    assert ends[0].second_moment == pytest.approx(ends[1].second_moment, rel=1e-3)
    applied.undo()
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


def test_functions_that_may_be_gates_are_named():
    """A hidden tanh is exchanged because the trace shows that it is one."""
    model = nn.Sequential(Hidden(torch.tanh), nn.Linear(8, 3))
    first = next(of_activations(model, trace(model, batch(), cross_entropy)))
    assert first.name == "activation=gelu:also=0:tanh"
    assert Remedy.named(first.name) == first
    twin = nn.Sequential(Hidden(nn.functional.gelu), nn.Linear(8, 3))
    twin.load_state_dict(model.state_dict())
    assert steps(apply(model, first).model) == steps(twin)


class Hidden(nn.Module):
    """A layer and a function of its outputs."""

    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(16, 8), function

    def forward(self, x):
        return self.function(self.layer(x.flatten(1)))


class Swish(nn.Module):
    """An activation as a module of the model's own."""

    def forward(self, x):
        return x * torch.sigmoid(x)


def test_modules_of_the_models_own_that_are_activations_are_exchanged_whole():
    """By hand, too: x σ(x) would otherwise be x times the other activation."""
    model = nn.Sequential(Hidden(Swish()), nn.Linear(8, 3))
    first = next(of_activations(model, trace(model, batch(), cross_entropy)))
    assert first.name == "activation=gelu"
    twin = nn.Sequential(Hidden(nn.GELU()), nn.Linear(8, 3))
    twin.load_state_dict(model.state_dict())
    applied = apply(model, first)
    assert type(model[0].function) is nn.GELU
    assert steps(model) == steps(twin)
    applied.undo()
    assert type(model[0].function) is Swish


def test_a_formula_in_a_forward_stays():
    """Its operations cannot be told from others of the module."""
    model = nn.Sequential(Hidden(lambda x: x * torch.sigmoid(x)), nn.Linear(8, 3))
    assert not list(of_activations(model, trace(model, batch(), cross_entropy)))
    with pytest.warns(UserWarning, match="changed nothing"):
        apply(model, "activation=gelu").model(batch()[0])


def test_modules_at_gates_and_outputs_stay():
    """DCGAN's generator ends in a tanh, which is no hidden activation."""
    model = nn.Sequential(network(), nn.Tanh())
    remedies = list(of_activations(model, trace(model, batch(), cross_entropy)))
    assert [one.edits[0].kept for one in remedies] == [("1",)] * len(remedies)
    changed = apply(model, remedies[0]).model
    assert isinstance(changed[1], nn.Tanh)
    assert isinstance(changed[0][2], nn.GELU)


def test_a_mix_that_fails_midway_is_undone():
    model = network()
    with pytest.raises(ValueError, match="has no parameter"):
        apply(model, Remedy((Edit("shift", 0.5), Edit("weights", factors=(Factor("x", 2.0),)))))
    assert not model[1].bias.any()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Edit("shift"),
        lambda: Edit("shift", "0.5"),
        lambda: Edit("shrift", 0.5),
        lambda: Factor("0.weight", math.nan),
        lambda: from_plain(Remedy, {"edits": [to_plain(Edit("eps", 0.1)) | {"value": -0.1}]}),
    ],
)
def test_edits_that_mean_nothing_are_refused_where_they_are_made(make):
    with pytest.raises(ValueError, match="must be"):
        make()


def test_a_factory_is_refused_with_the_wrapper_named():
    with pytest.raises(ValueError, match="fixed"):
        apply(network, "shift=0.5")


def test_a_model_in_the_place_of_a_factory_is_refused_with_apply_named():
    with pytest.raises(ValueError, match=r"equipoise.apply\(model, remedy\)"):
        fixed(nn.Linear(2, 2), "shift=0.5")


@pytest.mark.parametrize("given", [3, ["norm=layer"], torch.ones(2)])
def test_what_is_no_remedy_is_refused(given):
    with pytest.raises(ValueError, match="a remedy is given by its name, such as 'norm=group:8'"):
        apply(nn.Linear(2, 2), given)


def test_the_best_of_a_fix_in_which_nothing_helped_is_refused():
    with pytest.raises(ValueError, match="None where none helps"):
        apply(nn.Linear(2, 2), None)


@pytest.mark.parametrize(
    "name",
    ["shift=1", "norm=group:2", "norm=batch_renorm:20 shift=0.5", "activation=gelu", "eps=1e-3"],
)
def test_printed_lines_work_where_they_are_pasted(name):
    """Nothing but ``model`` has to be there."""
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
    expected = apply(copy.deepcopy(model), name).model
    names = {"model": model}
    exec("\n".join(code_lines(Remedy.named(name))), names)
    assert str(names["model"]) == str(expected)
    state = names["model"].state_dict()
    assert all(torch.equal(value, state[key]) for key, value in expected.state_dict().items())
