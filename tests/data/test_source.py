import pytest
import torch

from equipoise.data import Samples, Source, load
from equipoise.data.source import shuffled_indices


def numbered(count, classes=None):
    return Samples("numbered", torch.arange(float(count)), torch.arange(count), classes)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def drawn(source, batch_size, count, generator):
    return [x.tolist() for x, _ in source.batches(batch_size, count, generator)]


def test_samples_are_a_source():
    assert isinstance(numbered(4), Source)
    assert not numbered(4).fixed_batches


def test_an_epoch_holds_every_sample_once():
    batches = drawn(numbered(12), 4, 3, seeded())
    assert sorted(x for batch in batches for x in batch) == list(range(12))
    assert batches != [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_inputs_keep_their_targets():
    for x, y in numbered(10).batches(3, 7, seeded()):
        assert x.tolist() == y.tolist()


def test_every_batch_is_full_and_without_repetition():
    batches = drawn(numbered(10), 4, 25, seeded())
    assert all(len(set(batch)) == 4 for batch in batches)
    assert len(batches) == 25


def test_exhausted_order_is_shuffled_again():
    batches = drawn(numbered(32), 32, 2, seeded())
    assert batches[0] != batches[1]
    assert sorted(batches[0]) == sorted(batches[1])


def test_generator_decides_the_order():
    source = numbered(50)
    assert drawn(source, 8, 9, seeded(1)) == drawn(source, 8, 9, seeded(1))
    assert drawn(source, 8, 9, seeded(1)) != drawn(source, 8, 9, seeded(2))


def test_global_random_state_is_left_as_found():
    before = torch.get_rng_state()
    drawn(numbered(50), 8, 9, seeded())
    assert torch.equal(torch.get_rng_state(), before)


def test_oversized_batch_is_refused_at_once():
    with pytest.raises(ValueError, match=r"numbered has 10 samples, .* one batch of 11.*most 10"):
        numbered(10).batches(11, 1, seeded())


@pytest.mark.parametrize(("batch_size", "count"), [(0, 1), (1, 0), (-2, 1)])
def test_sizes_below_one_are_refused(batch_size, count):
    with pytest.raises(ValueError, match=r"must be a whole number of at least 1"):
        numbered(10).batches(batch_size, count, seeded())


class Elsewhere:
    device = torch.device("meta")


@pytest.mark.parametrize(
    ("generator", "told"), [(Elsewhere(), "one on meta"), (None, "None"), (0, "0")]
)
def test_anything_but_a_generator_of_the_cpu_is_refused(generator, told):
    with pytest.raises(ValueError, match=rf"with a torch.Generator\(\) of it; got {told}"):
        numbered(10).batches(1, 1, generator)


@pytest.mark.parametrize("name", ["digits", "random:3x4:2", "text:16"])
def test_the_default_device_changes_nothing(name):
    """A generator of the CPU cannot draw on another device."""
    expected = [*load(name).batches(4, 2, seeded())]
    with torch.device("meta"):
        found = [*load(name).batches(4, 2, seeded())]
    for one, other in zip(found, expected, strict=True):
        assert all(map(torch.equal, one, other))


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (torch.zeros(3, 2), torch.zeros(2), r"3 inputs and 2 targets"),
        (torch.zeros(0, 2), torch.zeros(0), r"at least one sample"),
        (torch.tensor(1.0), torch.zeros(1), r"inputs \[\]"),
    ],
)
def test_samples_must_be_labelled(inputs, targets, message):
    with pytest.raises(ValueError, match=message):
        Samples("bad", inputs, targets)


def test_so_many_samples_that_their_order_would_not_fit():
    drawn = list(shuffled_indices(10**12, 64, 20, torch.Generator().manual_seed(0)))
    found = torch.cat(drawn)
    assert len(found.unique()) == len(found) == 64 * 20
    assert int(found.min()) >= 0
    assert 4e11 < found.double().mean() < 6e11
    again = torch.cat(list(shuffled_indices(10**12, 64, 20, torch.Generator().manual_seed(0))))
    assert torch.equal(found, again)
