"""The seven verbs in front, as a script or a notebook uses them."""

import importlib
import inspect
import pkgutil
import subprocess
import sys

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise import models, theory


def build():
    return models.mlp(64, 10, depth=5, width=32)


@pytest.fixture(scope="module")
def found():
    return eq.checkup(build, "digits", seeds=2, batches=1)


def test_a_checkup_shows_and_saves_itself(found, tmp_path, capsys):
    found.show()
    assert found.verdict.sentence in capsys.readouterr().out
    page = found.save(tmp_path / "new folder")
    assert page.name == "report.html"
    assert (page.parent / "report.json").exists()


def test_a_notebook_shows_the_first_screen_and_the_page_in_a_frame(found):
    shown = found._repr_html_()
    assert shown.startswith("<div")
    assert "<iframe" in shown
    assert found.verdict.sentence in shown


def test_a_measurement_shows_itself(tmp_path, capsys):
    probe = eq.measure(build, "digits", training=None)
    probe.show()
    assert "reliable" in capsys.readouterr().out
    assert probe.save(tmp_path).name == "probe.html"


def test_tune_says_which_value_trains():
    tuned = eq.tune("relu", 64, depth=60, knob="beta")
    rate = eq.predict("relu", 64, beta=tuned.best).rate
    assert theory.max_trainable_depth(rate) == pytest.approx(60, rel=1e-4)


def test_track_and_bnp_ride_along_one_training():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    eq.BNP(model).attach(optimizer)

    def loss_fn(model, batch):
        return model(batch).square().mean()

    x = torch.randn(16, 4)
    with eq.track(model, loss_fn, optimizer, every=1) as tracker:
        for batch in tracker.batches([x, x, x]):
            optimizer.zero_grad()
            loss_fn(model, batch).backward()
            optimizer.step()
    losses = [dict(sample.values)["loss"] for sample in tracker.history]
    assert losses == sorted(losses, reverse=True)
    assert len(losses) == 3


def test_importing_the_front_does_not_import_torch():
    code = (
        "import sys, equipoise; assert 'torch' not in sys.modules; equipoise.theory; print('ok')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "ok"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'chekup'"):
        _ = eq.chekup
    assert {"checkup", "theory"} <= set(dir(eq))


def test_the_front_shows_its_verbs_and_rooms_alone():
    rooms = {name for name in dir(eq) if not name.startswith("_")} - set(eq.__all__)
    assert all(getattr(eq, room).__name__ == f"equipoise.{room}" for room in rooms)


def test_the_first_call_leaves_pythons_generator_as_it_is():
    """Modules that it imports must not draw from it; of its digits, scikit-learn is none."""
    code = (
        "import random, sys, torch, equipoise as eq\n"
        "random.seed(0)\n"
        "before = random.getstate()\n"
        "model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n"
        "eq.assert_trainable(model, 'digits', at_least=0)\n"
        "assert random.getstate() == before\n"
        "assert 'sklearn' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)


def functions_with_options():
    """Every public function that has options, by room and name."""
    rooms = [module.name for module in pkgutil.iter_modules(eq.__path__)]
    for room in ["equipoise", *(f"equipoise.{name}" for name in rooms if name != "__main__")]:
        module = importlib.import_module(room)
        for name in getattr(module, "__all__", ()):
            function = getattr(module, name)
            if inspect.isfunction(function) and any(
                parameter.kind is parameter.KEYWORD_ONLY or parameter.default is not inspect._empty
                for parameter in inspect.signature(function).parameters.values()
            ):
                yield f"{room}.{name}", function


# Called on tensors in forward passes, which torch.compile traces.
ON_TENSORS = {
    f"equipoise.pooling.{name}"
    for name in (
        "run_factor",
        "run_symmetric",
        "run_matrix",
        "matrix_power",
        "log_euclidean",
        "sqrt_newton_schulz",
        "bilinear",
        "upper_triangle",
    )
}


@pytest.mark.parametrize("function", [pytest.param(f, id=n) for n, f in functions_with_options()])
def test_every_public_function_refuses_unknown_options_by_its_name(function, request):
    name = request.node.callspec.id
    subject = ("relu", 8) if name == "equipoise.predict" else ()
    message = f"^{function.__name__} has no option 'optoin'"
    if name in ON_TENSORS:
        message = "unexpected keyword argument 'optoin'"
    with pytest.raises(TypeError, match=message):
        function(*subject, optoin=1)
