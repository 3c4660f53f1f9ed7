"""One pass becomes a graph of elementary operations, with measured gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import get_gradient_edge

from equipoise.instrument.recording.graph import Given, Made
from equipoise.instrument.recording.tracer import trace
from support.model_state import differences, fingerprint, left_alone


def summed(model, x):
    return model(x).square().sum()


def names(graph):
    return [node.name for node in graph.nodes]


def node_of(graph, name, place=0):
    return [node for node in graph.nodes if node.name == name][place]


class Functional(nn.Module):
    """The same as :func:`modular`, written out."""

    def __init__(self):
        super().__init__()
        self.weight = nn.ParameterList([nn.Parameter(torch.ones(5, 3, 1, 1)), torch.ones(2, 5)])
        self.bias = nn.Parameter(torch.ones(2))

    def forward(self, x):
        x = F.gelu(F.conv2d(x, self.weight[0]))
        return F.linear(x.mean((2, 3)), self.weight[1], self.bias)


def modular():
    pool = nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(
        nn.Conv2d(3, 5, 1, bias=False), nn.GELU(), pool, nn.Flatten(), nn.Linear(5, 2)
    )


class InPlace(nn.Module):
    """Overwrites what a layer returned."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x):
        h = self.layer(x)
        h.clamp_(min=0)
        h += 1
        return h * 2


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.register_buffer("shift", torch.ones(6))

    def forward(self, x):
        return self.inner(x) + self.shift


class Repeated(nn.Module):
    """Loops and branches in Python."""

    def __init__(self, repetitions):
        super().__init__()
        self.layer, self.repetitions = nn.Linear(6, 6, bias=False), repetitions

    def forward(self, x):
        for i in range(self.repetitions):
            x = self.layer(x)
            if i % 2:
                x = x.tanh()
        return x


class TestNodes:
    def test_are_operations_in_order(self):
        graph = trace(Nested(), torch.randn(3, 6), summed)
        assert [n for n in names(graph) if n != "detach"] == [
            *("t", "addmm", "tanh", "add"),
            *("pow", "sum"),
        ]
        assert [node.number for node in graph.nodes] == list(range(len(graph.nodes)))

    def test_are_the_same_for_modules_and_functions(self):
        x = torch.randn(4, 3, 2, 2)
        moved = {"view", "detach", "_unsafe_view", "squeeze", "t"}
        found = [
            [name for name in names(trace(model, x, summed)) if name not in moved]
            for model in (Functional(), modular())
        ]
        assert found[0] == found[1] == ["convolution", "gelu", "mean", "addmm", "pow", "sum"]

    def test_of_loops_are_recorded_as_often_as_they_run(self):
        for repetitions in (1, 4):
            found = names(trace(Repeated(repetitions), torch.randn(3, 6), summed))
            assert found.count("mm") == repetitions
            assert found.count("tanh") == repetitions // 2

    def test_bear_the_name_of_the_innermost_module(self):
        graph = trace(nn.Sequential(Nested()), torch.randn(3, 6), summed)
        places = {node.name: node.module for node in graph.nodes}
        assert places["addmm"] == "0.inner.0"
        assert places["tanh"] == "0.inner.1"
        assert places["add"] == "0"
        assert places["sum"] == ""

    def test_keep_their_arguments(self):
        graph = trace(nn.LeakyReLU(0.3), torch.randn(3, 6), summed)
        assert node_of(graph, "leaky_relu").arguments[1] == 0.3

    def test_have_all_outputs(self):
        class Halves(nn.Linear):
            def forward(self, x):
                first, second = super().forward(x).split(2, 1)
                return first * second.exp()

        graph = trace(Halves(6, 4), torch.randn(3, 6), summed)
        split = node_of(graph, "split")
        assert len(split.outputs) == len(split.gradients) == 2
        assert node_of(graph, "exp").inputs == (Made(split.number, 1),)


class TestInputs:
    def test_are_parameters_buffers_data_or_made(self):
        x = torch.randn(3, 6)
        graph = trace(Nested(), x, summed)
        bias, data, weight = node_of(graph, "addmm").inputs
        assert (bias.kind, bias.name) == ("parameter", "inner.0.bias")
        assert (data.kind, data.name) == ("data", "")
        assert torch.equal(data.value, x)
        assert weight == Made(node_of(graph, "t").number, 0)
        made, shift = node_of(graph, "add").inputs
        assert made == Made(node_of(graph, "tanh").number, 0)
        assert (shift.kind, shift.name) == ("buffer", "shift")

    def test_of_tied_weights_bear_one_name(self):
        model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
        model[1].weight = model[0].weight
        graph = trace(model, torch.randn(3, 6), summed)
        found = [node_of(graph, "t", place).inputs[0].name for place in (0, 1)]
        assert found == ["0.weight", "0.weight"]

    def test_numbers_are_none(self):
        graph = trace(nn.Identity(), torch.randn(3, 6), lambda model, x: (model(x) * 3).sum())
        (given,) = node_of(graph, "mul").inputs
        assert isinstance(given, Given)


class TestInPlace:
    def test_the_value_before_is_kept(self):
        model, x = InPlace(), torch.randn(3, 6)
        graph = trace(model, x, summed)
        values = {name: node_of(graph, name).outputs[0] for name in ("addmm", "clamp", "add")}
        torch.testing.assert_close(values["addmm"], model.layer(x))
        torch.testing.assert_close(values["clamp"], model.layer(x).clamp(min=0))
        torch.testing.assert_close(values["add"], model.layer(x).clamp(min=0) + 1)

    def test_what_follows_comes_from_the_last_write(self):
        graph = trace(InPlace(), torch.randn(3, 6), summed)
        assert node_of(graph, "mul").inputs == (Made(node_of(graph, "add").number, 0),)

    def test_what_was_overwritten_keeps_its_gradient(self):
        """The same as without writing in place."""
        model, x = InPlace(), torch.randn(3, 6)
        graph = trace(model, x, summed)
        before = model.layer(x)
        loss = ((before.clamp(min=0) + 1) * 2).square().sum()
        (expected,) = torch.autograd.grad(loss, before)
        torch.testing.assert_close(node_of(graph, "addmm").gradients[0], expected)

    def test_what_was_overwritten_tells_whether_it_has_a_gradient(self):
        """Weights behind it count as learnt, as without writing in place; data do not."""
        model, x = InPlace(), torch.randn(3, 6)
        graph = trace(model, x, lambda model, x: summed(model, x.clone().mul_(2)))
        assert node_of(graph, "addmm").outputs[0].requires_grad
        assert node_of(graph, "clamp").outputs[0].requires_grad
        assert not node_of(graph, "clone").outputs[0].requires_grad
        frozen = trace(InPlace().requires_grad_(False), x.requires_grad_(), summed)
        assert node_of(frozen, "addmm").outputs[0].requires_grad

    def test_places_are_found_before_overwriting(self):
        kept = []

        def loss(model, x):
            handle = model.layer.register_forward_hook(
                lambda _, args, output: kept.append(get_gradient_edge(output))
            )
            with handle:
                return summed(model, x)

        graph = trace(InPlace(), torch.randn(3, 6), loss)
        assert graph.at(kept) == [Made(node_of(graph, "addmm").number, 0)]

    def test_all_values_have_their_gradients(self):
        """Those of the same model without writes."""

        class Twin(InPlace):
            def forward(self, x):
                return (self.layer(x).clamp(min=0) + 1) * 2

        model, x = InPlace(), torch.randn(3, 6)
        twin = Twin()
        twin.load_state_dict(model.state_dict())
        graphs = trace(model, x, summed), trace(twin, x, summed)
        for name in ("addmm", "clamp", "add", "mul"):
            found, exact = (node_of(graph, name).gradients[0] for graph in graphs)
            torch.testing.assert_close(found, exact)

    def test_names_have_no_underscore(self):
        assert "clamp" in names(trace(InPlace(), torch.randn(3, 6), summed))


def halves(x):
    """A write to a part, whose other part is a view that was made and read before."""
    h = x + 0.0
    rest = h[:, 3:]
    before = rest.exp()
    h[:, :3].mul_(2)
    return (h.square().sum(1) * rest.sum(1)).sum() + before.sum()


def halves_without_writes(x):
    rest = x[:, 3:]
    h = torch.cat([2 * x[:, :3], rest], 1)
    return (h.square().sum(1) * rest.sum(1)).sum() + rest.exp().sum()


def cached(x):
    """Writes into memory that is empty at first."""
    memory = torch.zeros(2, *x.shape)
    memory[0] = x
    memory[1, :, :3] = x[:, 3:]
    return memory.square().sum()


def reshaped(x):
    h = x + 0.0
    h.view(-1).exp_()
    return h.square().sum()


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(6, 6), function

    def forward(self, x):
        return self.function(self.layer(x))


def values_at(graph, name):
    return [node.outputs[0] for node in graph.nodes if node.name == name]


class TestWritesToViews:
    """What memory held before, and that a tensor was written in part."""

    def test_a_tensor_that_was_written_in_part_is_recorded_anew(self):
        def forward(h):
            h[:, :3] = 0
            return h.tanh()

        model, x = Call(forward), torch.randn(4, 6)
        graph = trace(model, x, summed)
        (node,) = (node for node in graph.nodes if node.in_part)
        h = model.layer(x)
        torch.testing.assert_close(node_of(graph, "addmm").outputs[0], h)
        torch.testing.assert_close(node.outputs[0], torch.cat([0 * h[:, :3], h[:, 3:]], 1))
        fill = next(n for n in graph.nodes if n.name in ("fill", "copy") and not n.in_part)
        assert node.inputs == (Made(node_of(graph, "addmm").number, 0), Made(fill.number, 0))
        assert node_of(graph, "tanh").inputs == (Made(node.number, 0),)

    def test_views_of_other_parts_are_not(self):
        graph = trace(Call(lambda h: h), torch.randn(4, 6), lambda model, x: halves(model(x)))
        (node,) = (node for node in graph.nodes if node.in_part)
        assert node.outputs[0].shape == (4, 6)

    def test_what_is_not_read_again_is_not(self):
        def forward(h):
            part = h[:, :3]
            part.relu_()
            return part

        graph = trace(Call(forward), torch.randn(4, 6), summed)
        assert not any(node.in_part for node in graph.nodes)

    @pytest.mark.parametrize("function", [reshaped, cached, halves])
    def test_the_loss_is_that_of_autograd(self, function):
        model, x = Call(lambda h: h), torch.randn(4, 6)
        graph = trace(model, x, lambda model, x: function(model(x)))
        h = model(x)
        (gradient,) = torch.autograd.grad(function(h), h)
        torch.testing.assert_close(node_of(graph, "addmm").gradients[0], gradient)
        torch.testing.assert_close(node_of(graph, "addmm").outputs[0], h)
        assert any(node.in_part for node in graph.nodes)

    def test_gradients_are_those_of_the_values(self):
        """Of the part that was read, then left alone while its memory was written."""
        x = torch.randn(4, 6)
        model = Call(lambda h: h)
        graph = trace(model, x, lambda model, x: halves(model(x)))
        h = model(x)
        (gradient,) = torch.autograd.grad(halves_without_writes(h), h)
        torch.testing.assert_close(node_of(graph, "add").gradients[0], gradient)

    def test_data_that_is_overwritten_is_kept(self):
        class Moving(Call):
            """Subtracts a running average, then changes it."""

            def __init__(self):
                super().__init__(lambda h: h)
                self.register_buffer("average", torch.ones(6))

            def forward(self, x):
                h = super().forward(x) - self.average
                self.average[:3].mul_(0.9)
                return h * self.average

        graph = trace(Moving(), torch.randn(4, 6), summed)
        given = node_of(graph, "sub").inputs[1]
        assert (given.name, given.value.tolist()) == ("average", [1.0] * 6)
        (node,) = (node for node in graph.nodes if node.in_part)
        assert node.outputs[0].tolist() == pytest.approx([0.9] * 3 + [1.0] * 3)
        assert node_of(graph, "mul", 1).inputs[1] == Made(node.number, 0)

    def test_a_place_for_the_result_is_no_input(self):
        def forward(x):
            with torch.no_grad():
                place = torch.empty(4, 6)
                torch.exp(x, out=place)
            return x * place

        graph = trace(Call(forward), torch.randn(4, 6), summed)
        exp = node_of(graph, "exp")
        assert exp.inputs == (Made(node_of(graph, "addmm").number, 0),)
        assert Made(exp.number, 0) in node_of(graph, "mul").inputs

    def test_lists_are_written(self):
        def forward(x):
            parts = [x * 2, x * 3]
            with torch.no_grad():
                torch._foreach_add_(parts, 1.0)
            return parts[0] + parts[1]

        graph = trace(Call(forward), torch.randn(4, 6), summed)
        written = node_of(graph, "_foreach_add").number
        assert node_of(graph, "add").inputs == (Made(written, 0), Made(written, 1))


class TestGradients:
    def test_of_weights_are_mean_squares(self):
        model, x = nn.Linear(6, 4), torch.randn(3, 6)
        graph = trace(model, x, summed)
        summed(model, x).backward()
        assert graph.weights["weight"] == pytest.approx(float(model.weight.grad.square().mean()))

    def test_frozen_weights_do_not_cut_them(self):
        model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)).requires_grad_(False)
        graph = trace(model, torch.randn(3, 6), summed)
        assert node_of(graph, "tanh").gradients[0] is not None
        assert not any(p.requires_grad for p in model.parameters())

    def test_are_those_of_autograd(self):
        kept = []

        class Kept(nn.Module):
            def forward(self, x):
                if not x.requires_grad:
                    return x
                kept.append(x)
                return x

        model = nn.Sequential(nn.Linear(6, 5), Kept(), nn.Tanh(), Kept(), nn.Linear(5, 4), Kept())
        x = torch.randn(3, 6)
        graph = trace(model, x, summed)
        kept.clear()
        gradients = torch.autograd.grad(summed(model, x), kept)
        nodes = [node_of(graph, "addmm"), node_of(graph, "tanh"), node_of(graph, "addmm", 1)]
        for node, value, gradient in zip(nodes, kept, gradients, strict=True):
            torch.testing.assert_close(node.outputs[0], value, rtol=0, atol=0)
            torch.testing.assert_close(node.gradients[0], gradient, rtol=0, atol=0)

    def test_add_up_where_a_value_is_used_twice(self):
        def loss_fn(model, x):
            h = model(x)
            return h.sum() + (3 * h).sum()

        graph = trace(nn.Linear(6, 4), torch.randn(3, 6), loss_fn)
        assert (node_of(graph, "addmm").gradients[0] == 4).all()

    def test_are_none_where_the_loss_does_not_depend_on_a_value(self):
        def loss_fn(model, x):
            h = model(x)
            h.exp()
            return h[:, :2].sum() + h.argmax()

        graph = trace(nn.Linear(6, 4), torch.randn(3, 6), loss_fn)
        assert node_of(graph, "exp").gradients == (None,)
        assert node_of(graph, "argmax").gradients == (None,)
        assert node_of(graph, "addmm").gradients[0] is not None

    def test_are_none_for_a_loss_without_any(self):
        graph = trace(nn.Linear(6, 4), torch.randn(3, 6), lambda model, x: model(x).detach().sum())
        assert all(gradient is None for node in graph.nodes for gradient in node.gradients)

    @pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
    def test_are_measured_where_autograd_is_off(self, context):
        x = torch.randn(3, 6)
        with context():
            graph = trace(nn.Linear(6, 4), x, summed)
        assert node_of(graph, "addmm").gradients[0] is not None


def test_the_loss_is_the_model_s():
    model, x = Nested(), torch.randn(3, 6)
    assert trace(model, x, summed).loss == pytest.approx(summed(model, x).item())


class Everything(nn.Module):
    """Running statistics, random masks, frozen weights and a mode of its own."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 4)
        self.norm, self.noise = nn.BatchNorm1d(6), nn.Dropout(0.5)
        self.head.weight.requires_grad_(False)
        self.norm.eval()

    def forward(self, x):
        h = F.batch_norm(
            self.layer(x), self.norm.running_mean, self.norm.running_var, training=True
        )
        return self.head(self.noise(torch.relu_(self.norm(h))))


class TestModel:
    def test_is_left_untouched(self):
        model, x = Everything(), torch.randn(8, 6)
        summed(model, x).backward()
        with left_alone(model):
            graph = trace(model, x, summed)
            assert {"native_batch_norm", "relu", "addmm"} <= set(names(graph))

    def test_is_left_untouched_by_a_loss_that_fails(self):
        def failing(model, x):
            model(x)
            raise KeyError("target")

        model, x = Everything(), torch.randn(8, 6)
        with left_alone(model), pytest.raises(KeyError, match="target"):
            trace(model, x, failing)

    def test_an_untraced_pass_does_touch_it(self):
        model, x = Everything(), torch.randn(8, 6)
        before = fingerprint(model)
        summed(model, x).backward()
        assert len(differences(before, fingerprint(model))) > 3

    def test_the_pass_is_the_one_that_would_come_next(self):
        """Random masks included."""
        model, x = Everything(), torch.randn(8, 6)
        traced = trace(model, x, summed).loss
        assert traced == pytest.approx(summed(model, x).item(), rel=1e-6)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: F.glu(x, 1), ["tensor_split", "sigmoid", "mul"]),
        (lambda x: F.pixel_shuffle(x, 2), ["view", "permute", "reshape", "clone"]),
    ],
    ids=["glu", "pixel_shuffle"],
)
def test_composite_operators_are_taken_apart(function, expected):
    x = torch.randn(2, 4, 3, 3)
    layer = nn.Conv2d(4, 4, 1)
    graph = trace(layer, x, lambda model, batch: function(model(batch)).sum())
    assert names(graph) == ["convolution", *expected, "sum"]
    assert graph.loss == pytest.approx(float(function(layer(x)).sum().detach()), rel=1e-5)
    assert graph.nodes[0].gradients[0] is not None


class TestOtherParameters:
    """What is computed of parameters alone follows them."""

    @pytest.mark.parametrize(
        "build",
        [
            lambda: nn.Linear(4, 3),
            lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)),
        ],
        ids=["transposed", "weight norm"],
    )
    def test_equals_a_trace_of_the_changed_model(self, build):
        torch.manual_seed(0)
        model, x = build(), torch.randn(5, 4)
        graph = trace(model, x, summed)
        values = {name: value.detach() * 3 for name, value in model.named_parameters()}
        changed = graph.with_parameters(values)
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.copy_(values[name])
        again = trace(model, x, summed)
        of_data = set()
        for node, expected in zip(changed.nodes, again.nodes, strict=True):
            if any(
                source.node in of_data if isinstance(source, Made) else source.kind == "data"
                for source in node.inputs
            ):
                of_data.add(node.number)
            else:
                for ours, theirs in zip(node.outputs, expected.outputs, strict=True):
                    torch.testing.assert_close(ours, theirs)
        assert of_data
        assert len(of_data) < len(changed.nodes)

    def test_the_old_graph_stays(self):
        model = nn.Linear(4, 3)
        graph = trace(model, torch.randn(5, 4), summed)
        before = node_of(graph, "t").outputs[0].clone()
        graph.with_parameters({"weight": torch.zeros(3, 4)})
        assert torch.equal(node_of(graph, "t").outputs[0], before)


class CircularlyPadded(nn.Module):
    def __init__(self, pad):
        super().__init__()
        self.scale, self.pad = nn.Parameter(torch.ones(())), pad

    def forward(self, x):
        return nn.functional.pad(x * self.scale, self.pad, mode="circular")


@pytest.mark.parametrize("pad", [(2, 0, 1, 3), (0, 5, 4, 0)])
def test_circular_padding_is_one_choice_of_elements_for_each_axis(pad):
    x = torch.randn(2, 3, 4, 5)
    graph = trace(CircularlyPadded(pad), x, lambda model, x: model(x).sum())
    assert not any(node.in_part for node in graph.nodes)
    last = [node for node in graph.nodes if node.name == "index_select"][-1]
    assert torch.equal(last.outputs[0], nn.functional.pad(x, pad, mode="circular"))
