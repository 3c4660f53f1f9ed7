"""Every random generator of a model is captured and restored, also from a checkpoint."""

import io
import random

import numpy as np
import pytest
import torch
from torch import nn

from equipoise.instrument import random_states
from equipoise.instrument.random_states import RandomStates, seed_torch, seeded


class Owner(nn.Module):
    """A module with attributes."""

    def __init__(self, **attributes):
        super().__init__()
        vars(self).update(attributes)


def torch_generator():
    return torch.Generator().manual_seed(3)


def from_torch(generator):
    return lambda: torch.rand(3, generator=generator).tolist()


def from_numpy(generator):
    # A single 32-bit integer leaves half of a 64-bit draw in the state.
    return lambda: [*generator.normal(size=3), *generator.bytes(3)]


def from_python(generator):
    return lambda: [generator.random(), generator.gauss(0, 1)]


def bit_generators():
    return [getattr(np.random, name)(3) for name in ("PCG64", "MT19937", "Philox", "SFC64")]


def every_source():
    """A model, and what draws from each of its generators, by name."""
    own = {
        "torch": torch_generator(),
        "in a list": [torch_generator()],
        "in a dictionary": {"a": (None, torch_generator())},
        "NumPy": [np.random.Generator(bits) for bits in bit_generators()],
        "NumPy's old": np.random.RandomState(3),
        "Python": random.Random(3),
    }
    model = nn.Sequential(nn.Linear(2, 2), Owner(**own))
    draws = {
        "torch": from_torch(None),
        "NumPy": from_numpy(np.random),
        "Python": from_python(random),
        "own": from_torch(own["torch"]),
        "own in a list": from_torch(own["in a list"][0]),
        "own in a dictionary": from_torch(own["in a dictionary"]["a"][1]),
        "own of NumPy's old kind": from_numpy(own["NumPy's old"]),
        "own of Python": from_python(own["Python"]),
    }
    for generator in own["NumPy"]:
        draws[f"own {type(generator.bit_generator).__name__}"] = from_numpy(generator)
    return model, draws


SOURCES = list(every_source()[1])


@pytest.mark.parametrize("name", SOURCES)
class TestEverySource:
    def test_is_restored(self, name):
        model, draws = every_source()
        draws[name]()
        states = RandomStates(model)
        first = draws[name]()
        assert draws[name]() != first
        states.restore()
        assert draws[name]() == first

    def test_is_restored_from_a_file(self, name):
        model, draws = every_source()
        file = io.BytesIO()
        draws[name]()
        torch.save(RandomStates(model).state_dict(), file)
        first = draws[name]()
        draws[name]()
        file.seek(0)
        RandomStates(model).load_state_dict(torch.load(file, weights_only=True))
        assert draws[name]() == first

    def test_counts_as_used_unless_it_is_pytorch_s(self, name):
        model, draws = every_source()
        states = RandomStates(model)
        assert not states.others_than_torch_were_used()
        before = states.torch_states()
        draws[name]()
        moved = not all(map(torch.equal, before, states.torch_states()))
        assert states.others_than_torch_were_used() == (not moved)
        assert states.numpy_was_used() == (name == "NumPy")
        assert moved == (name in {"torch", "own", "own in a list", "own in a dictionary"})


class TestWhatIsFound:
    def test_a_generator_with_two_owners_counts_once(self):
        shared = torch_generator()
        model = nn.Sequential(Owner(g=shared), Owner(g=[shared, shared]))
        assert RandomStates(model).counts == {"accelerators": 0, "own generators": 1}

    def test_containers_that_hold_themselves_end(self):
        endless = [torch_generator()]
        endless.append(endless)
        assert RandomStates(Owner(endless=endless)).counts["own generators"] == 1

    def test_the_system_s_generator_has_no_state(self):
        assert RandomStates(Owner(g=random.SystemRandom())).counts["own generators"] == 0

    def test_meta_tensors_are_on_no_accelerator(self):
        assert RandomStates(nn.Linear(2, 2, device="meta")).counts["accelerators"] == 0


class FakeDevices:
    """Stands in for ``torch.cuda`` and the like: one state per device."""

    def __init__(self):
        self.states = {}

    def get_rng_state(self, device=None):
        return self.states.get(str(device), torch.zeros(1))

    def set_rng_state(self, state, device=None):
        self.states[str(device)] = state


@pytest.mark.parametrize(
    ("names", "keys"), [(["cuda:0", "cuda:1"], ["cuda:0", "cuda:1"]), (["mps:0"], ["None"])]
)
def test_accelerators(monkeypatch, names, keys):
    """Each has a state of its own; of the one MPS device, older versions ask without naming it."""
    fake = FakeDevices()
    devices = [torch.device(name) for name in names]
    monkeypatch.setattr(random_states, "_accelerators", lambda modules: devices)
    monkeypatch.setattr(torch, "get_device_module", lambda device: fake)
    fake.states = {key: torch.full((1,), float(i)) for i, key in enumerate(keys)}
    before = dict(fake.states)
    states = RandomStates(nn.Linear(2, 2))
    saved = states.state_dict()
    for put_back in (states.restore, lambda: RandomStates(nn.ReLU()).load_state_dict(saved)):
        fake.states = dict.fromkeys(keys, torch.full((1,), 9.0))
        put_back()
        assert fake.states == before
    assert states.counts["accelerators"] == len(names)


class TestCheckpoint:
    def test_lists_in_place_of_tuples_are_accepted(self):
        saved = RandomStates(Owner(g=random.Random(3))).state_dict()
        for state in (saved["python"], saved["own"][0]):
            assert isinstance(state[1], tuple)
        saved["python"] = [saved["python"][0], list(saved["python"][1]), None]
        saved["own"] = [[saved["own"][0][0], list(saved["own"][0][1]), None]]
        model = Owner(g=random.Random(4))
        RandomStates(model).load_state_dict(saved)
        assert model.g.random() == random.Random(3).random()

    @pytest.mark.parametrize(
        ("kept", "what"), [("own", "random generators of its own"), ("devices", "accelerators")]
    )
    def test_another_number_of_generators_is_refused_before_anything_is_set(self, kept, what):
        states = RandomStates(nn.ReLU())
        saved = states.state_dict() | {kept: [torch.zeros(1)]}
        torch.rand(1)
        here = torch.get_rng_state()
        with pytest.raises(ValueError, match=f"on 1 {what}, this one has 0. Go on with"):
            RandomStates(nn.ReLU()).load_state_dict(saved)
        assert torch.equal(torch.get_rng_state(), here)


class TestSeeded:
    def test_it_draws_what_the_seed_says_and_restores(self):
        torch.manual_seed(5)
        expected, before = torch.rand(3), torch.get_rng_state()
        with seeded(5):
            assert torch.equal(torch.rand(3), expected)
        assert torch.equal(torch.get_rng_state(), before)

    @pytest.mark.skipif(torch.accelerator.is_available(), reason="seeds an accelerator too")
    def test_no_stack_is_noted_for_an_accelerator_that_may_come(self, monkeypatch):
        monkeypatch.setattr(torch, "manual_seed", pytest.fail)
        with seeded(5):
            pass

    def test_accelerators_are_seeded(self, monkeypatch):
        seeds = []
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        monkeypatch.setattr(torch, "manual_seed", seeds.append)
        seed_torch(5)
        assert seeds == [5]
