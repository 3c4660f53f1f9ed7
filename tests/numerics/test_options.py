"""Unknown keywords are refused by the function's own name, known ones arrive."""

import inspect
import types
import typing
from dataclasses import dataclass

import pytest
import torch

import equipoise as eq
from equipoise import pooling, theory
from equipoise.numerics.options import named_options

MODEL = torch.nn.Linear(1, 1)


class Shared(typing.TypedDict, total=False):
    eps: float


@dataclass
class Race:
    budget: float


@named_options
def layer(
    width, race: Race | None = None, *, momentum: float = 0.1, **options: typing.Unpack[Shared]
):
    return width, race, momentum, options


class TestNamedOptions:
    def test_known_ones_arrive(self):
        race = Race(1.0)
        assert layer(3, race=race, momentum=0.2, eps=0.5) == (3, race, 0.2, {"eps": 0.5})

    @pytest.mark.parametrize(
        ("wrong", "words"),
        [
            ({"momentun": 1}, "layer has no option 'momentun'. Did you mean 'momentum'?"),
            ({"epss": 1, "eps": 1}, "layer has no option 'epss'. Did you mean 'eps'?"),
            ({"xyz": 1}, "layer has no option 'xyz'. It takes eps, momentum, race, width."),
            (
                {"budget": 10},
                "layer has no option 'budget': it belongs in race, as in race=Race(budget=10).",
            ),
        ],
    )
    def test_others_are_refused_with_the_closest(self, wrong, words):
        with pytest.raises(TypeError) as error:
            layer(3, **wrong)
        assert str(error.value) == words


@named_options
def measured(
    layer: torch.nn.Module,
    names: typing.Sequence[str] = (),
    progress: typing.Callable[[], None] | None = None,
    width: int = 1,
    *,
    whole: bool = True,
    optimizer: torch.optim.Optimizer | None = None,
):
    if optimizer is not None:
        optimizer.step()
    for _ in names:
        progress()
    return layer.training, width + 1, whole


class TestKinds:
    @pytest.mark.parametrize(
        ("arguments", "options", "words"),
        [
            (
                (3,),
                {},
                "layer of measured must be a torch.nn.Module; got 3, which is of type int.",
            ),
            ((MODEL, 5), {}, "names of measured must be something to iterate over; got 5, which"),
            (
                (MODEL, "a"),
                {"progress": 2},
                "progress of measured must be a function or None; got 2",
            ),
            (
                (MODEL,),
                {"optimizer": 2},
                "optimizer of measured must be an Optimizer or None; got 2",
            ),
        ],
    )
    def test_the_argument_is_named_that_a_function_stumbles_over(self, arguments, options, words):
        with pytest.raises(TypeError) as error:
            measured(*arguments, **options)
        assert str(error.value).startswith(words)
        assert isinstance(error.value.__cause__, AttributeError | TypeError)

    def test_what_holds_the_argument_is_opened(self):
        """As a conversion of layers holds the model."""
        holder = types.SimpleNamespace(model=MODEL)
        with pytest.raises(TypeError, match=r"Give its `\.model`\.$"):
            measured(holder)

    def test_flags_are_true_or_false(self):
        with pytest.raises(ValueError, match="whole must be True or False; got 'no'"):
            measured(MODEL, whole="no")

    def test_what_serves_as_one_is_taken(self):
        assert measured(types.SimpleNamespace(training=False)) == (False, 2, True)

    def test_other_failures_are_left_alone(self):
        """Of numbers the function knows more, and an error that it raises says more."""
        with pytest.raises(TypeError, match="can only concatenate str"):
            measured(MODEL, width="one")
        with pytest.raises(TypeError, match=r"track needs a torch\.nn\.Module, got int"):
            eq.track(3)


def passes_options_on(public):
    try:
        return "options" in inspect.signature(public).parameters
    except (TypeError, ValueError):  # a record, a constant, a warning
        return False


PASS_ON = {
    f"{room.__name__}.{name}": getattr(room, name)
    for room in (theory, pooling)
    for name in room.__all__
    if passes_options_on(getattr(room, name))
}


@pytest.mark.parametrize("function", PASS_ON.values(), ids=PASS_ON)
def test_public_functions_that_pass_options_on_name_themselves(function):
    with pytest.raises(TypeError, match=f"^{function.__name__} has no option 'gamna'"):
        function(gamna=1)


FRONT = {
    "predict": (("relu", 64), {"gama": 0.5}, "predict has no option 'gama'. Did you mean 'gamma'"),
    "predict a model": ((None,), {"batches": 2}, "predict has no option 'batches'"),
    "assert_trainable": ((None,), {"atleast": 0.5}, "Did you mean 'at_least'?"),
    "fix": ((None,), {"budget": 10}, r"as in options=equipoise\.diagnosis\.FixOptions\(budget=10"),
    "checkup": ((None,), {"criterion": 3}, "has no option 'criterion'. Did you mean 'loss_fn'?"),
    "measure": (
        (None,),
        {"steps": 10},
        r"as in training=equipoise\.diagnosis\.SmoothnessOptions\(steps=10",
    ),
    "BNP": ((None,), {"rhos": 0.5}, "BNP has no option 'rhos'. Did you mean 'rho'?"),
    "tune": (("relu", 64), {"gama": 0.5}, "tune has no option 'gama'"),
    "track": ((None,), {"evry": 5}, "track has no option 'evry'. Did you mean 'every'?"),
}


@pytest.mark.parametrize(("given", "wrong", "words"), FRONT.values(), ids=FRONT)
def test_the_verbs_in_front_name_themselves(request, given, wrong, words):
    verb = getattr(eq, request.node.callspec.id.split()[0])
    with pytest.raises(TypeError, match=words):
        verb(*given, **wrong)


def test_a_layer_passes_options_of_its_base_on():
    assert pooling.RUNPool(8, num_steps=3, vector="full").vector == "full"
    with pytest.raises(
        TypeError, match=r"RUNPool has no option 'steps'\. Did you mean 'num_steps'"
    ):
        pooling.RUNPool(8, steps=3)
