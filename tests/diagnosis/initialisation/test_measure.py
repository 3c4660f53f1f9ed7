"""Planted mistakes are found and named; healthy models raise no alarm."""

import copy
import math
import random
import warnings
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import init

from equipoise.diagnosis import initialisation
from equipoise.diagnosis.initialisation.rules import Rule
from equipoise.diagnosis.initialisation.symptoms import Training
from equipoise.instrument import RandomStates


def kaiming(module):
    if isinstance(module, nn.Linear):
        init.kaiming_normal_(module.weight, nonlinearity="relu")
        init.zeros_(module.bias)


class Block(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)


def mlp(*widths):
    return nn.Sequential(*(nn.Linear(*pair) for pair in pairwise(widths))).apply(kaiming)


def transformer(depth=6, width=32):
    """Blocks drawn as in GPT-2."""
    model = nn.Sequential(*(Block(width) for _ in range(depth)), nn.Linear(width, 50))
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            scale = (2 * depth) ** -0.5 if name.endswith("down") else 1.0
            init.normal_(module.weight, std=0.02 * scale)
    return model


class FixupBlock(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, bias=False)


def fixup(depth=9, width=16, *, stem=True):
    """Blocks whose convolutions are drawn smaller with the depth, and whose last are zero."""
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, bias=False), *(FixupBlock() for _ in range(depth))
    )
    if stem:
        init.kaiming_normal_(model[0].weight, mode="fan_out", nonlinearity="relu")
    for block in model[1:]:
        init.normal_(block.conv1.weight, std=(2 / (9 * width * depth)) ** 0.5)
        init.zeros_(block.conv2.weight)
    return model


def relative_positions():
    """Words of unit size, and tables of relative positions of another, as in T5."""
    model = nn.ModuleDict({"words": nn.Embedding(100, 64)})
    for name in ("encoder", "decoder"):
        model[name] = nn.Embedding(32, 8)
        init.normal_(model[name].weight, std=64**-0.5)
    return model


def two_towers(width=96, shared=64, depth=6):
    """Blocks drawn by their depth, and projections of their own between both, as in CLIP."""
    model = nn.ModuleDict()
    for tower, size in (("text", shared), ("vision", width)):
        model[tower] = nn.Sequential(*(Block(size) for _ in range(depth)))
    model["see"] = nn.Linear(width, shared, bias=False)
    model["read"] = nn.Linear(shared, shared, bias=False)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            scale = (2 * depth) ** -0.5 if name.partition(".")[0] in ("text", "vision") else 1.0
            init.normal_(module.weight, std=scale * module.in_features**-0.5)
    return model


def inverted(width=32, depth=4):
    """Depthwise convolutions between others, whose outputs are those of a group, as in timm."""
    blocks = []
    for _ in range(depth):
        blocks += [
            nn.Conv2d(width, 4 * width, 1),
            nn.Conv2d(4 * width, 4 * width, 3, groups=4 * width),
            nn.Conv2d(4 * width, width, 1),
        ]
    for layer in blocks:
        outputs = layer.out_channels * math.prod(layer.kernel_size) // layer.groups
        init.normal_(layer.weight, std=(2 / outputs) ** 0.5)
    return nn.Sequential(*blocks)


class Drawing(nn.Module):
    """A part that draws its layers itself."""

    def __init__(self, width=64):
        super().__init__()
        self.q = nn.Conv2d(width, width, 1)
        self.reset_parameters()

    def reset_parameters(self):
        init.trunc_normal_(self.q.weight, std=self.q.in_channels**-0.5)


class Plain(nn.Module):
    """A part that leaves its layers to PyTorch's defaults."""

    def __init__(self, width=64):
        super().__init__()
        self.first, self.second = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)


class Around(nn.Module):
    """A part around another one, which leaves both to PyTorch's defaults."""

    def __init__(self, width=64):
        super().__init__()
        self.expand, self.inner = nn.Linear(width, 4 * width), Plain(width)


class Other(Around):
    """One of the same shape, which an init function draws."""


def alternating():
    """Parts of one class inside of two others, of which one is drawn, as in MaxxViT."""
    model = nn.Sequential(Around(32), Around(32), *(Other(64) for _ in range(6)))
    for module in model[2:].modules():
        if isinstance(module, nn.Linear):
            init.normal_(module.weight, std=0.02)
    return model


class Pyramid(nn.Module):
    """Convolutions that bring maps of all widths to one, drawn in one way."""

    def __init__(self, draw, widths=(64, 128, 256), width=32):
        super().__init__()
        self.inner = nn.ModuleList(nn.Conv2d(wide, width, 1) for wide in widths)
        self.outer = nn.ModuleList(nn.Conv2d(width, width, 3) for _ in widths)
        for layer in (*self.inner, *self.outer):
            draw(layer.weight)


def by_inputs(weight):
    init.kaiming_uniform_(weight, a=1)


def kaiming_by_outputs(weight):
    init.kaiming_normal_(weight, mode="fan_out", nonlinearity="relu")


def pyramid(draw=by_inputs):
    """A ResNet's trunk, drawn by its outputs, and a pyramid, as torchvision's detectors."""
    model = nn.Sequential(*(nn.Conv2d(16 * n, 16 * (n + 1), 3) for n in range(1, 14)))
    for layer in model:
        init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return nn.ModuleDict({"trunk": model, "pyramid": Pyramid(draw)})


class Head(nn.Module):
    """Two convolutions, too few to have a rule."""

    def __init__(self, draw):
        super().__init__()
        self.mix, self.classify = nn.Conv2d(128, 96, 3), nn.Conv2d(96, 64, 1)
        for layer in (self.mix, self.classify):
            draw(layer.weight)


def heads():
    """A trunk drawn by its outputs, and heads of two classes that are drawn alike, as UperNet."""
    draw = partial(init.normal_, std=0.02)
    model = pyramid(draw)
    return nn.ModuleDict({"trunk": model["trunk"], "head": Head(draw), "other": model["pyramid"]})


def hybrid(part, layer, draw):
    """Parts that draw their layers themselves or not at all, and blocks that are drawn."""
    model = nn.Sequential()
    for number in range(8):
        last = {"part": part()} if number > 5 else {"third": layer()}
        model.append(nn.ModuleDict({"first": layer(), "second": layer(), **last}))
        for one in model[-1].values():
            if not isinstance(one, part):
                draw(one.weight)
    return model


def with_a_new_head(*, factor=1.0):
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)), nn.Linear(64, 300))
    for layer in model[:-1]:
        init.normal_(layer.weight, std=0.05)
    with torch.no_grad():
        model[-1].weight *= factor
    return model


def cut_by_rounding():
    """One element in a matrix lies a hundred standard deviations outside."""
    model = nn.Sequential(*(Block(128) for _ in range(6)))
    for block in model:
        for layer in (block.up, block.down):
            init.normal_(layer.weight, std=0.02)
    with torch.no_grad():
        model[3].up.weight[5, 7] = -2.0
    return model


def with_patterns():
    """Each head's weights begin at the same few numbers, beside weights that are drawn."""
    model = nn.Sequential(*(nn.ModuleDict({"by": nn.Linear(9, 3)}) for _ in range(4)))
    for block in model:
        block["mix"] = nn.Linear(64, 64)
        block["by"].weight.data = torch.tensor([-1.0, 2.0, 5.0]).repeat(3, 3)
    return model


def told(model, named=None):
    return {fault.kind: set(fault.parameters) for fault in initialisation(model, named).faults}


HEALTHY = {
    "default": lambda: nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.Linear(32, 10)),
    "kaiming": lambda: mlp(64, 96, 48, 64, 10),
    "gpt2": transformer,
    "fixup": fixup,
    "fixup, with a default stem": lambda: fixup(stem=False),
    "depthwise": lambda: nn.Sequential(*(nn.Conv2d(32, 32, 3, groups=32) for _ in range(4))),
    "padding": lambda: nn.Sequential(*(nn.Embedding(40, 8, padding_idx=0) for _ in range(3))),
    "recurrent": lambda: nn.LSTM(16, 24, 2),
    "attention": lambda: nn.MultiheadAttention(32, 4),
    "tiny": lambda: nn.Linear(2, 2),
    "tables of two kinds": relative_positions,
    "two towers": two_towers,
    "outputs of one group": inverted,
    "parts that draw themselves": lambda: hybrid(
        Drawing, lambda: nn.Conv2d(64, 64, 1), lambda w: init.kaiming_normal_(w, mode="fan_out")
    ),
    "parts that are left alone": lambda: hybrid(
        Plain, lambda: nn.Linear(64, 64), partial(init.normal_, std=0.02)
    ),
    "parts inside of those that are left alone": alternating,
    "a part with a rule of its own": pyramid,
    "parts with one rule": heads,
    "a new head": with_a_new_head,
    "cut by rounding": cut_by_rounding,
    "patterns": with_patterns,
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_models_raise_no_alarm(name):
    assert told(HEALTHY[name]()) == {}


@pytest.mark.parametrize(
    "named",
    [kaiming, partial(init.kaiming_normal_, nonlinearity="relu")],
    ids=["module", "weight"],
)
def test_what_the_named_function_draws_is_as_intended(named):
    found = initialisation(mlp(64, 128, 128, 10), named)
    weights = [p for p in found.parameters if p.name.endswith("weight")]
    assert {p.verdict for p in weights} == {"as intended"}
    assert weights[0].intended_std == pytest.approx(math.sqrt(2 / 64), rel=0.03)


class TestPlantedMistakes:
    def test_a_layer_that_the_init_function_missed(self):
        model = mlp(64, 128, 96, 128, 10)
        model[2].reset_parameters()
        assert told(model) == {"missed": {"2.weight"}}
        found = initialisation(model, kaiming)
        assert {f.kind: set(f.parameters) for f in found.faults} == {
            "missed": {"2.weight", "2.bias"}
        }

    def test_fan_out_for_fan_in(self):
        model = mlp(64, 128, 96, 160, 10)
        init.kaiming_normal_(model[1].weight, mode="fan_out", nonlinearity="relu")
        assert told(model) == {"fan mode": {"1.weight"}}

    def test_residual_scaling_forgotten(self):
        model = transformer()
        init.normal_(model[2].down.weight, std=0.02)
        assert told(model) == {"residual scaling": {"2.down.weight"}}
        (fault,) = initialisation(model).faults
        assert "lacks the factor 1/√12" in fault.detail

    def test_a_layer_on_another_scale(self):
        model = mlp(64, 128, 96, 160, 10)
        model[2].weight.data *= 1.5
        assert told(model) == {"mis-scaled": {"2.weight"}}

    def test_blocks_that_draw_their_own_weights_say_nothing_of_other_layers(self):
        class Drawn(nn.Module):
            def __init__(self):
                super().__init__()
                self.up, self.down = nn.Linear(32, 32), nn.Linear(32, 32)
                self.apply(kaiming)

        model = nn.Sequential(nn.Linear(16, 32), *(Drawn() for _ in range(5)), nn.Linear(32, 50))
        assert initialisation(model).faults == ()
        model[3].up.reset_parameters()  # one inside of them is missed all the same
        assert [f.kind for f in initialisation(model).faults] == ["missed"]

    def test_a_small_last_layer_is_an_exception(self):
        model = mlp(64, 128, 96, 160, 10)
        model[3].weight.data *= 0.01
        assert told(model) == {}
        assert initialisation(model).parameters[-2].verdict == "exception"

    @pytest.mark.parametrize(
        ("draw", "kind", "words"),
        [
            (partial(init.normal_, std=0.0004), "mis-scaled", "a variance was given"),
            (partial(init.uniform_, a=-0.02, b=0.02), "mis-scaled", "bound of a uniform law"),
            (partial(init.normal_, mean=0.01, std=0.02), "shifted", "mean 0.010 instead of 0"),
            (
                partial(init.uniform_, a=-0.02 * 3**0.5, b=0.02 * 3**0.5),
                "reshaped",
                "another form, uniform",
            ),
        ],
    )
    def test_arguments_mistaken(self, draw, kind, words):
        model = mlp(64, 128, 128)
        for layer in model:
            draw(layer.weight)
        (fault,) = initialisation(model, partial(init.normal_, std=0.02)).faults
        assert (fault.kind, set(fault.parameters)) == (kind, {"0.weight", "1.weight"})
        assert words in fault.detail

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_low_precision(self, dtype):
        model = mlp(32, 64, 10)
        model[0].weight.data = model[0].weight.data.to(dtype).float()
        assert told(model) == {"low precision": {"0.weight"}}

    def test_a_coarse_generator(self):
        model = nn.Linear(64, 64).bfloat16()
        assert told(model) == {}
        model.weight.data = 2 * torch.rand_like(model.weight) - 1
        assert told(model)["low precision"] == {"weight"}

    def test_a_large_embedding_tied_to_a_head(self):
        model = nn.ModuleDict({"tokens": nn.Embedding(50, 64), "head": nn.Linear(64, 50)})
        model["head"].weight = model["tokens"].weight
        assert told(model) == {"tied": {"tokens.weight", "head.weight"}}
        init.normal_(model["tokens"].weight, std=0.02)
        assert told(model) == {}

    @pytest.mark.parametrize(
        ("stack", "layer"),
        [
            (nn.TransformerEncoder, nn.TransformerEncoderLayer),
            (nn.TransformerDecoder, nn.TransformerDecoderLayer),
        ],
    )
    def test_pytorchs_stacks_copy_their_layer(self, stack, layer):
        """They run one after the other, and part at the first step."""
        found = told(stack(layer(16, 2, 32, batch_first=True), 2))
        assert found.keys() == {"copied in sequence"}
        assert "layers.1.linear1.weight" in found["copied in sequence"]

    def test_copies_in_a_list_may_run_side_by_side(self):
        block = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
        copies = [copy.deepcopy(block) for _ in range(3)]
        assert told(nn.Sequential(*copies)).keys() == {"copied in sequence"}
        assert told(nn.ModuleList(copies)).keys() == {"copied"}

    def test_equal_biases_beside_independent_matrices_are_none(self):
        """nn.Transformer copies its layers, and draws every matrix anew."""
        assert told(nn.Transformer(32, 4, 2, 2, 64, batch_first=True)) == {}

    def test_a_target_network_is_meant_to_be_a_copy(self):
        online = mlp(16, 32, 4)
        target = mlp(16, 32, 4)
        target.load_state_dict(online.state_dict())
        assert told(nn.ModuleDict({"online": online, "target": target})) == {}

    def test_not_finite(self):
        model = mlp(32, 64, 64, 64, 10)
        model[1].weight.data[0, 0] = math.nan
        assert told(model) == {"not finite": {"1.weight"}}
        assert initialisation(model).parameters[2].verdict == "not finite"

    def test_constant_weights(self):
        model = mlp(32, 64, 64, 64, 10)
        init.ones_(model[1].weight)
        assert told(model) == {"constant": {"1.weight"}}
        init.zeros_(model[1].weight)  # closes a branch
        assert told(model) == {}


def test_the_work_grows_with_the_layers_alone(monkeypatch):
    """Two classes of blocks, one of which no rule meets: 700 layers took a minute and a half."""

    class Other(Plain):
        pass

    counts = []
    z = Rule.z
    monkeypatch.setattr(Rule, "z", lambda *given: (counts.append(1), z(*given))[1])

    def work(blocks):
        model = nn.Sequential(
            *(Plain(16) for _ in range(2 * blocks)), *(Other(12) for _ in range(blocks))
        )
        for block in model:
            for layer in (block.first, block.second):
                init.normal_(layer.weight, std=0.05 if isinstance(block, Other) else 0.02)
        counts.clear()
        initialisation(model)
        return len(counts)

    assert work(12) < 2.5 * work(6)


def test_attention_may_keep_its_own_draws():
    """As in torchvision's vision transformers; if one was drawn anew, the others were missed."""
    model = nn.Sequential()
    for _ in range(6):
        model.append(nn.ModuleDict({"attend": nn.MultiheadAttention(64, 4)}))
        model[-1].update({"up": nn.Linear(64, 256), "down": nn.Linear(256, 64)})
        for name in ("up", "down"):
            init.xavier_uniform_(model[-1][name].weight)
    assert told(model) == {}
    for block in model[:4]:
        init.xavier_uniform_(block["attend"].out_proj.weight)
    missed = {f"{number}.attend.out_proj.weight" for number in (4, 5)}
    assert told(model) == {"missed": missed}


class Speech(nn.Module):
    """Its init function knows layers, and a part by its class, as those of wav2vec 2.0."""

    class Projection(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 48)

    def __init__(self, *, knows_the_part):
        super().__init__()
        self.knows_the_part = knows_the_part
        self.stem, self.features = nn.Linear(80, 64), self.Projection()
        self.blocks = nn.Sequential(*(Block(48) for _ in range(3)))
        self.head = nn.Linear(48, 10)
        self.apply(self._init_weights)

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            init.normal_(module.weight, std=0.02)
        elif isinstance(module, self.Projection) and self.knows_the_part:
            bound = module.linear.in_features**-0.5
            init.uniform_(module.linear.weight, -bound, bound)
            init.uniform_(module.linear.bias, -bound, bound)


def test_a_part_that_the_models_init_function_draws_is_meant_so():
    assert told(Speech(knows_the_part=True)) == {}
    model = Speech(knows_the_part=False)
    model.features.linear.reset_parameters()
    assert told(model) == {"missed": {"features.linear.weight"}}


def test_a_part_with_a_slip_has_no_rule_of_its_own():
    def triple(weight):
        init.kaiming_normal_(weight, mode="fan_out", nonlinearity="relu")
        weight.data *= 3

    (fault,) = initialisation(pyramid(triple)).faults
    assert fault.kind == "mis-scaled"
    assert "times as large" in fault.detail


class Token(nn.Module):
    """The embedding of a series, which draws its only convolution."""

    def __init__(self, draw):
        super().__init__()
        self.token = nn.Conv1d(32, 80, 3, bias=False)
        draw(self.token.weight)


def by_relu(weight):
    init.kaiming_normal_(weight, mode="fan_in", nonlinearity="leaky_relu")


def large(weight):
    init.normal_(weight, std=1.0)


@pytest.mark.parametrize(("draw", "expected"), [(by_relu, set()), (large, {"2.token.weight"})])
@pytest.mark.parametrize("outer", [lambda weight: None, kaiming_by_outputs])
def test_a_class_may_draw_its_only_layer_by_a_rule_with_a_name(draw, expected, outer):
    """As in the time series library of Tsinghua; by a size of its own it is told as before."""
    trunk = [nn.Conv1d(16 * n, 16 * (n + 1), 3) for n in range(1, 9)]
    for layer in trunk:
        outer(layer.weight)
    model = nn.Sequential(*trunk[:2], Token(draw), *trunk[2:])
    assert set().union(*told(model).values()) == expected


def test_heads_with_an_init_function_say_nothing_of_the_trunk():
    """As of FCOS and RetinaNet; a layer of the heads that it missed is told."""

    def part():
        return nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)))

    model = nn.ModuleDict({"trunk": part(), "boxes": part(), "classes": part()})
    for name in ("boxes", "classes"):
        for layer in model[name]:
            init.normal_(layer.weight, std=0.01)
    assert told(model) == {}
    model["boxes"][2].reset_parameters()
    assert told(model) == {"missed": {"boxes.2.weight"}}


class TestHalfLoaded:
    """Low rank stands for training."""

    def model(self):
        model = nn.Sequential()
        for _ in range(3):
            model += nn.Sequential(nn.Linear(48, 48), nn.BatchNorm1d(48))
        model.append(nn.Linear(48, 10))
        for layer in (model[0], model[4]):
            u, v = torch.randn(2, 48)
            layer.weight.data += 0.1 * u.outer(v)
        return model

    def test_a_fresh_layer_among_trained_ones(self):
        model = self.model()
        for norm in (model[1], model[3], model[5]):
            norm.running_mean += 1
        assert told(model) == {"half loaded": {"2.weight"}}
        assert initialisation(model).parameters[0].looks_trained

    def test_a_student_beside_a_frozen_teacher_is_fresh_on_purpose(self):
        teacher = self.model()
        for norm in (teacher[1], teacher[3], teacher[5]):
            norm.running_mean += 1
        for layer in (teacher[2], teacher[6]):
            u, v = torch.randn(len(layer.weight)), torch.randn(48)
            layer.weight.data += 0.1 * u.outer(v)
        student = nn.Sequential(nn.Linear(48, 48), nn.Linear(48, 10))
        both = nn.ModuleDict({"teacher": teacher, "student": student})
        assert told(both) == {"fresh part": {"student.0.weight"}}
        teacher.requires_grad_(False)
        assert told(both) == {}
        nn.init.xavier_normal_(teacher[2].weight), teacher[2].reset_parameters()
        assert "teacher.2.weight" in told(both)["half loaded"]

    def test_statistics_that_were_not_loaded(self):
        assert told(self.model())["running statistics"] == {"1", "3", "5"}

    @pytest.mark.parametrize("names", [("encoder", "decoder"), ("stage1", "stage2")])
    def test_a_part_with_a_name_of_its_own_may_be_fresh_throughout(self, names):
        """Stages whose names differ by a number are one part: one of them was not loaded."""
        trained, fresh = self.model(), self.model()
        for norm in (trained[1], trained[3], trained[5]):
            norm.running_mean += 1
        for layer in (fresh[0], fresh[4]):
            layer.reset_parameters()
        u, v = torch.randn(2, 48)
        trained[2].weight.data += 0.1 * u.outer(v)
        found = told(nn.ModuleDict(dict(zip(names, (trained, fresh), strict=True))))
        if names == ("encoder", "decoder"):
            assert found == {"fresh part": {f"decoder.{n}.weight" for n in (0, 2, 4)}}
        else:
            assert found == {
                "half loaded": {f"stage2.{n}.weight" for n in (0, 2, 4)},
                "running statistics": {f"stage2.{n}" for n in (1, 3, 5)},
            }

    def test_triangular_matrices_are_as_they_were_made(self):
        """As those of Glow's invertible convolutions, in factors."""
        model = mlp(48, 48, 48, 48)
        for layer in (model[0], model[1]):
            layer.weight.data.triu_(1)
        assert not any(one.looks_trained for one in initialisation(model).parameters)

    def test_one_odd_matrix_is_no_training(self):
        model = mlp(48, 48, 48)
        model[0].weight.data += torch.randn(48, 1)
        names = [name for name, _ in model.named_parameters()]
        assert told(model) == {}
        assert Training({}, (names[0],), ()).is_likely is False


def test_the_model_and_all_random_states_are_left_alone():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    model(torch.randn(9, 8)).sum().backward()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    weight, gradient = model[0].weight, model[0].weight.grad.clone()
    states, state = RandomStates(model), torch.get_rng_state()

    def wild(module):
        np.random.rand(), random.random()  # noqa: NPY002
        if isinstance(module, nn.Linear):
            module.weight = nn.Parameter(torch.randn(8, 8))

    initialisation(model, wild)
    assert not states.others_than_torch_were_used()
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model[0].weight is weight
    assert torch.equal(weight.grad, gradient)


def raising(module):
    raise RuntimeError("boom")


@pytest.mark.parametrize(
    ("model", "named", "message"),
    [
        (nn.ReLU(), None, "no real parameters"),
        (nn.Linear(2, 2, dtype=torch.complex64), None, "Linear are complex numbers"),
        (mlp, None, "needs a torch.nn.Module, got function"),
        (nn.LazyLinear(2), None, "lazy parameters"),
        (nn.Linear(2, 2, device="meta"), None, "meta device"),
        (nn.Linear(2, 2), raising, "neither to the model's modules .RuntimeError: boom"),
        (nn.Linear(2, 2), "kaiming", "'str' object is not callable"),
        (nn.Linear(2, 2), lambda module: None, "modules .it left all parameters as they were"),
    ],
)
def test_wrong_input(model, named, message):
    with pytest.raises(ValueError, match=message):
        initialisation(model, named)


@pytest.mark.parametrize(
    ("draw", "kinds"),
    [
        (partial(init.normal_, std=0.02), []),
        (partial(init.uniform_, a=-0.035, b=0.035), ["mis-scaled"]),
        (init.normal_, ["mis-scaled"]),
    ],
)
def test_a_layer_that_another_function_draws_smaller_is_meant_so(draw, kinds):
    """As the embedding of time in DiT, normal among uniform layers; normal_() alone has std 1."""
    names = ("first", "time", "second", "third", "fourth", "fifth", "last")
    model = nn.ModuleDict({name: nn.Linear(64, 64) for name in names})
    for layer in model.values():
        init.xavier_uniform_(layer.weight)
    draw(model["time"].weight)
    assert [fault.kind for fault in initialisation(model).faults] == kinds


def test_a_small_sibling_does_not_hide_that_a_layer_is_drawn_apart():
    """Of few elements no form is known."""
    layers = [nn.Linear(4, 32), *(nn.Linear(32, 64) for _ in range(4)), nn.Linear(32, 32)]
    model = nn.ModuleDict(dict(zip("abcdef", layers, strict=True)))
    init.normal_(model["f"].weight, std=0.02)
    model["last"] = nn.Linear(32, 64)
    assert initialisation(model).faults == ()


@pytest.mark.parametrize("draw", [init.eye_, lambda x: init.sparse_(x, 0.8)])
def test_identities_set_no_rule_for_others(draw):
    """A head as PyTorch draws it was said to be missed by what wrote identities."""
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)), nn.Linear(16, 12))
    for layer in model[:-1]:
        draw(layer.weight)
    assert initialisation(model).faults == ()


class TestWeightNorm:
    """The old one computes the weight anew before every pass, from its length and direction."""

    @staticmethod
    def build(write=lambda layer: None):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            layers = [nn.utils.weight_norm(nn.Linear(24, 24)) for _ in range(3)]
        for layer in layers[:2]:
            write(layer)
        return nn.Sequential(*layers)

    @pytest.mark.parametrize(
        "write",
        [
            lambda layer: layer.weight.data.normal_(0, 0.01),
            lambda layer: init.normal_(layer.weight, std=0.01),
        ],
    )
    def test_what_is_written_to_the_weight_is_lost(self, write):
        """As in the temporal convolutional network of Bai et al."""
        (fault,) = initialisation(self.build(write)).faults
        assert (fault.kind, fault.of) == ("not used", 3)
        assert fault.parameters == ("0.weight", "1.weight")
        assert "of std 0.010" in fault.detail

    def test_what_is_written_to_the_direction_counts(self):
        model = self.build(lambda layer: init.normal_(layer.weight_v, std=0.01))
        assert "not used" not in [fault.kind for fault in initialisation(model).faults]

    @pytest.mark.parametrize(
        "write",
        [
            lambda layer: layer.weight_g.data.mul_(torch.rand(24, 1) + 0.5),
            lambda layer: layer.weight_g.data.zero_(),
            lambda layer: layer.weight_v.data.mul_(0.9).add_(0.1 * torch.rand(24, 24)),
            lambda layer: layer.bfloat16().float(),
        ],
        ids=["data-dependent", "rezero", "average", "rounded"],
    )
    def test_what_changes_length_and_direction_in_place(self, write):
        """Nothing counts what is written to ``.data``."""
        model = self.build(write)
        assert "not used" not in [fault.kind for fault in initialisation(model).faults]

    def test_zeros_that_are_written_to_the_weight_are_lost(self):
        model = self.build(lambda layer: layer.weight.data.zero_())
        assert "not used" in [fault.kind for fault in initialisation(model).faults]

    def test_after_a_step_the_weight_is_merely_old(self):
        model = self.build()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(torch.randn(8, 24)).square().sum().backward()
        optimizer.step()
        assert initialisation(model).faults == ()


@pytest.mark.parametrize(("factor", "missed"), [(1.05, set()), (1.5, {"student.weight"})])
def test_a_layer_of_about_the_size_of_its_siblings_does_no_harm(factor, missed):
    """As a fresh student beside a teacher that a few steps have made a little larger."""
    names = ("student", *(f"teacher{n}" for n in range(4)))
    model = nn.ModuleDict({name: nn.Linear(64 + 16 * n, 256) for n, name in enumerate(names)})
    for name in names[1:]:
        model[name].weight.data *= factor
    assert set().union(*told(model).values()) == missed


@pytest.mark.parametrize(
    ("norm", "off"),
    [
        (nn.utils.weight_norm, set()),
        (nn.utils.parametrizations.weight_norm, set()),
        (nn.utils.spectral_norm, set()),
        (nn.utils.parametrizations.spectral_norm, set()),
        (lambda layer: layer, {"4.weight"}),
    ],
)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_the_size_of_what_a_norm_divides_by_its_size_is_free(norm, off):
    """As of the last layer of DINO, drawn by PyTorch beside others of std 0.02."""
    model = nn.Sequential(*(nn.Linear(48 + 16 * n, 64 + 16 * n) for n in range(9)))
    for layer in (*model[:4], *model[5:]):
        init.normal_(layer.weight, std=0.02)
    init.normal_(model[4].weight, std=0.07)
    norm(model[4])
    assert set().union(*told(model).values()) == off


@pytest.mark.parametrize(
    ("least", "off"), [(1e-7, set()), (0.0, set()), (0.01, {"0.conv0.weight"})]
)
def test_branches_that_end_as_good_as_at_zero_say_nothing_of_where_they_begin(least, off):
    """As in NCSN++, whose blocks begin and end in convolutions that a number tells apart."""

    def block(inputs):
        return nn.ModuleDict({"conv0": nn.Conv2d(inputs, 32, 3), "conv1": nn.Conv2d(32, 32, 3)})

    model = nn.Sequential(block(32), block(16), block(24), block(48))
    for part in model:
        init.uniform_(part["conv1"].weight, -least, least)
    assert set().union(*told(model).values()) == off
