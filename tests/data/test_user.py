import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from equipoise.data import Samples, Source
from equipoise.data.user import IndexedSource, LoaderSource, StreamedSource, as_source
from support.cases import each

X, Y = torch.arange(24.0).reshape(12, 2), torch.arange(12) % 3


def pairs():
    for start in range(0, 12, 4):
        yield X[start : start + 4], Y[start : start + 4]


class Stream(IterableDataset):
    def __iter__(self):
        return zip(X, Y, strict=True)


class Noisy(Dataset):
    """Augments with PyTorch's global random state, as most transforms do."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return X[index] + torch.randn(2), int(Y[index])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def inputs(source, batch_size=4, count=5, seed=0):
    return torch.stack([x for x, _ in source.batches(batch_size, count, seeded(seed))])


SOURCES = {
    "list of batches": (list(pairs()), LoaderSource),
    "generator": (None, LoaderSource),
    "loader": (DataLoader(TensorDataset(X, Y), batch_size=4), LoaderSource),
    "shuffling loader": (DataLoader(Noisy(), batch_size=4, shuffle=True), LoaderSource),
    "function": (pairs, LoaderSource),
    "lambda": (lambda: DataLoader(TensorDataset(X, Y), batch_size=4), LoaderSource),
    "data set": (TensorDataset(X, Y), IndexedSource),
    "augmenting data set": (Noisy(), IndexedSource),
    "class": (Noisy, IndexedSource),
    "stream": (Stream(), StreamedSource),
    "tensors": ((X, Y), Samples),
}


class Tokens(Dataset):
    """What a tokenizer returns: lists in a dictionary."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return {"input_ids": [index, index + 1, index + 2], "labels": index % 3}


def test_lists_of_numbers_in_samples_are_tensors():
    (batch,) = as_source(Tokens(), "tokens").batches(12, 1, seeded())
    first = batch["input_ids"][:, 0]
    assert first.sort().values.tolist() == list(range(12))
    assert torch.equal(batch["input_ids"], first[:, None] + torch.arange(3))
    assert torch.equal(batch["labels"], first % 3)


@pytest.mark.parametrize("kind", SOURCES)
class TestEverySource:
    """What any source promises, whatever it wraps."""

    @pytest.fixture
    def source(self, kind):
        data, expected = SOURCES[kind]
        source = as_source(itertools.cycle(pairs()) if data is None else data, kind)
        assert isinstance(source, expected)
        return source

    def test_fulfils_the_protocol(self, source, kind):
        assert isinstance(source, Source)
        assert source.name == kind
        assert source.classes is None
        assert source.fixed_batches == isinstance(source, LoaderSource)

    def test_yields_as_many_batches_as_asked(self, source, kind):
        batches = list(source.batches(4, 7, seeded()))
        assert [x.shape for x, _ in batches] == [(4, 2)] * 7
        assert all(y.shape == (4,) and y.dtype == torch.int64 for _, y in batches)

    def test_global_random_state_is_left_as_found_even_between_batches(self, source, kind):
        before = torch.get_rng_state()
        for _ in source.batches(4, 5, seeded()):
            assert torch.equal(torch.get_rng_state(), before)
        assert torch.equal(torch.get_rng_state(), before)

    def test_refuses_bad_requests_at_once(self, source, kind):
        with pytest.raises(ValueError, match=r"count must be a whole number of at least 1"):
            source.batches(4, 0, seeded())


def test_a_tuple_of_equal_tensors_is_one_batch_and_a_list_several():
    views = [torch.randn(8, 2) for _ in range(3)]
    (drawn,) = as_source(tuple(views), "triplets").batches(4, 1, seeded())
    assert [view.shape for view in drawn] == [(4, 2)] * 3
    several = list(as_source(views, "inputs").batches(8, 3, seeded()))
    assert all(map(torch.equal, several, views))


@pytest.mark.parametrize(
    "kind", ["shuffling loader", "data set", "augmenting data set", "tensors"]
)
def test_generator_decides_shuffling_and_augmentation(kind):
    source = as_source(SOURCES[kind][0], kind)
    assert torch.equal(inputs(source, seed=1), inputs(source, seed=1))
    assert not torch.equal(inputs(source, seed=1), inputs(source, seed=2))


def test_a_second_draw_from_one_generator_goes_on():
    source, generator = as_source(SOURCES["shuffling loader"][0], "loader"), seeded()
    first, second = (torch.stack([x for x, _ in source.batches(4, 3, generator)]) for _ in "ab")
    assert not torch.equal(first, second)


class TestOneShotIterators:
    def test_only_what_is_needed_is_drawn(self):
        drawn = []
        source = as_source((drawn.append(i) or (X, Y) for i in range(100)), "generator")
        list(source.batches(12, 3, seeded()))
        assert drawn == [0, 1, 2]

    def test_the_next_draw_goes_on(self):
        source = as_source(pairs(), "generator")
        first = inputs(source, count=1)
        assert not torch.equal(first, inputs(source, count=1))

    def test_running_dry_names_the_remedy(self):
        source = as_source(pairs(), "generator")
        with pytest.raises(ValueError, match=r"ended after 3 of 4 batches. Give a function"):
            list(source.batches(4, 4, seeded()))

    def test_a_function_is_called_again_instead(self):
        assert torch.equal(inputs(as_source(pairs, "pairs"), count=6)[:3], X.view(3, 4, 2))


class TestBatchSizes:
    def test_loader_keeps_its_own(self):
        source = as_source(list(pairs()), "list")
        assert [len(x) for x, _ in source.batches(64, 2, seeded())] == [4, 4]

    def test_data_set_too_small(self):
        with pytest.raises(ValueError, match=r"set has 12 samples, fewer than one batch of 13"):
            as_source(TensorDataset(X, Y), "set").batches(13, 1, seeded())

    def test_stream_too_short_is_not_filled_up_with_repetitions(self):
        source = as_source(Stream(), "stream")
        with pytest.raises(ValueError, match=r"too few samples for one batch of 13"):
            next(source.batches(13, 1, seeded()))
        assert all(x.unique(dim=0).shape == (5, 2) for x, _ in source.batches(5, 6, seeded()))


def test_numpy_batches_become_tensors():
    source = as_source([(X.numpy(), Y.numpy())], "arrays")
    x, y = next(source.batches(1, 1, seeded()))
    assert torch.equal(x, X)
    assert torch.equal(y, Y)


def test_a_source_stays_as_it_is():
    samples = Samples("mine", X, Y, 3)
    assert as_source(samples, "other name") is samples
    assert as_source(lambda: samples, "other name") is samples


class Unsized(Dataset):
    def __getitem__(self, index):
        return X[index], Y[index]


@each(
    ("data", "message"),
    [
        (3, r"thing is of type int; expected a DataLoader, a Dataset, an iterable of batches"),
        ("text", r"of type str"),
        ({"train": []}, r"of type dict"),
        (nn.Linear(2, 2), r"of type Linear"),
        (Unsized(), r"Unsized without __len__"),
        (lambda: 3, r"thing is of type int"),
        (lambda: pairs, r"thing is of type function"),
        (lambda root: pairs(), r"missing a required argument: 'root'. Give its arguments"),
        (lambda: 1 / 0, r"Calling thing raised ZeroDivisionError: division by zero"),
    ],
)
def test_other_objects_are_refused_at_once(data, message):
    with pytest.raises(ValueError, match=message):
        as_source(data, "thing")


def test_data_without_a_name_are_named_by_their_class_once():
    with pytest.raises(ValueError, match=r"^the data are an int; expected a DataLoader"):
        as_source(3, "int")


@each(
    ("data", "message"),
    [
        ([], r"thing is empty: it yields no batches"),
        (lambda: iter(()), r"thing is empty"),
        (iter(()), r"one-shot iterator that ended after 0 of 1"),
        ([{"text": "a"}], r"without a tensor: a dict with the keys \['text'\]. Wrap it"),
        ([(X[0], 3), (X[1], 4)], r"single samples, the first with the target 3; .* DataLoader"),
        (list(TensorDataset(X, Y)), r"single samples, the first with the target 0"),
        ([("a", "b", "c")], r"without a tensor: a tuple of 3"),
        ([3], r"without a tensor: an int"),
        ([(X, Y[:5])], r"shape \[12, 2\] with targets of shape \[5\].*in a dictionary"),
        ([(X, torch.tensor(1.0))], "single samples, the first with the target 1.0"),
    ],
)
def test_other_batches_are_refused_when_drawn(data, message):
    batches = as_source(data, "thing").batches(1, 1, seeded())
    with pytest.raises(ValueError, match=message):
        next(batches)


@pytest.mark.parametrize("count", [6 * 4, 6])
def test_there_may_be_a_target_for_each_step(count):
    """One after the other, as in PyTorch's example of a language model."""
    tokens = torch.arange(6 * 4).reshape(6, 4)
    (batch,) = as_source([(tokens, torch.zeros(count))], "thing").batches(1, 1, seeded())
    assert batch[1].shape == (count,)


@pytest.mark.parametrize(("kind", "columns"), [(torch.long, 5), (torch.long, 4), (torch.float, 5)])
def test_translations_may_have_their_words_first(kind, columns):
    """And are of another length then; points inside and on a boundary are no such pair."""
    words, others = torch.zeros(8, 5).to(kind), torch.zeros(10, columns).to(kind)
    batches = as_source([(words, others)], "thing").batches(1, 1, seeded())
    if kind is torch.long and columns == 5:
        assert next(batches)[1].shape == (10, 5)
    else:
        with pytest.raises(ValueError, match="no pair"):
            next(batches)


def test_samples_that_do_not_stack_are_refused():
    class Ragged(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return torch.zeros(index + 1), 0

    with pytest.raises(ValueError, match=r"do not stack .* tensors of one shape"):
        next(as_source(Ragged(), "ragged").batches(2, 1, seeded()))


class TestFaultsOfTheUsersCode:
    """Each names the data, where it was, and what was raised, which is its cause."""

    @pytest.mark.parametrize("error", [OSError("disk on fire"), KeyError("disk on fire")])
    def test_of_a_loader(self, error):
        def faulty():
            yield X, Y
            raise error

        with pytest.raises(ValueError, match=r"faulty could not yield batch 2: .*on fire") as told:
            list(as_source(faulty, "faulty").batches(1, 2, seeded()))
        assert told.value.__cause__ is error

    def test_of_a_data_set(self):
        class Faulty(Noisy):
            def __getitem__(self, index):
                raise IndexError(index)

        with pytest.raises(ValueError, match=r"faulty could not give sample \d+: IndexError: \d+"):
            next(as_source(Faulty(), "faulty").batches(4, 1, seeded()))

    @pytest.mark.parametrize("length", [-1, 2.5])
    def test_of_its_length(self, length):
        class Faulty(Noisy):
            def __len__(self):
                return length

        with pytest.raises(ValueError, match=r"faulty could not tell its length: \w+Error"):
            as_source(Faulty(), "faulty")

    def test_of_what_is_no_iterator(self):
        class Faulty:
            def __iter__(self):
                return 3

        with pytest.raises(ValueError, match="faulty could not be iterated over: TypeError"):
            next(as_source(Faulty(), "faulty").batches(4, 1, seeded()))

    def test_of_a_batch_that_holds_itself(self):
        batch = {"x": X}
        batch["self"] = batch
        with pytest.raises(ValueError, match="faulty is nested too deep, or holds itself"):
            next(as_source([batch], "faulty").batches(4, 1, seeded()))

    def test_of_an_array_that_pytorch_has_no_type_for(self):
        pair = X.numpy().astype(np.longdouble), Y.numpy()
        if pair[0].dtype == np.float64:
            pytest.skip("long doubles are doubles here")
        with pytest.raises(ValueError, match="faulty holds an array that PyTorch cannot take"):
            as_source(pair, "faulty")


def test_arrays_may_run_backwards():
    ((x, y),) = as_source([(X.numpy()[::-1], Y.numpy()[::-1])], "pair").batches(12, 1, seeded())
    assert torch.equal(x, X.flip(0))
    assert torch.equal(y, Y.flip(0))


class Named(Dataset):
    """Samples are dictionaries, as Hugging Face's are."""

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return {"image": X[index], "label": Y[index]}


class Table:
    """A length and samples at indices, but no class of PyTorch."""

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return X[index], Y[index]


class Module:
    """A Lightning data module."""

    def prepare_data(self):
        self.prepared = True

    def setup(self, stage):
        assert self.prepared
        self.stage = stage

    def train_dataloader(self):
        assert self.stage == "fit"
        return DataLoader(TensorDataset(X, Y), 4)


FORMS = {
    "a dictionary": ({"image": X, "label": Y}, ["image", "label"]),
    "dictionaries": ([{"image": X, "label": Y}], ["image", "label"]),
    "a set of dictionaries": (Named(), ["image", "label"]),
    "three tensors": ((X, Y, Y), (3, torch.Tensor)),
    "nested inputs": ([((X, X), Y)], (2, tuple)),
    "arrays": ((X.numpy(), Y.numpy()), (2, torch.Tensor)),
    "inputs alone": (X, torch.Tensor),
    "a set of inputs alone": (TensorDataset(X), (1, torch.Tensor)),
    "a table": (Table(), (2, torch.Tensor)),
    "a data module": (Module(), (2, torch.Tensor)),
    "a list that a loader yielded": ([X, Y], (2, torch.Tensor)),
}


@each(("data", "form"), FORMS.values(), ids=FORMS)
def test_batches_keep_the_form_of_the_data(data, form):
    (batch,) = as_source(data, "thing").batches(2, 1, seeded())
    if isinstance(form, list):
        assert list(batch) == form
    elif isinstance(form, tuple):
        assert (len(batch), type(batch[0])) == form
    else:
        assert isinstance(batch, form)


def test_rows_of_a_dictionary_stay_together():
    rows = {"number": torch.arange(12), "double": 2 * torch.arange(12)}
    (batch,) = as_source(rows, "rows").batches(5, 1, seeded())
    assert len(batch["number"].unique()) == 5
    assert torch.equal(2 * batch["number"], batch["double"])


def test_tensors_of_other_lengths_are_one_batch():
    source = as_source({"nodes": torch.ones(7, 2), "edges": torch.ones(2, 9)}, "graph")
    assert source.fixed_batches
    (batch,) = source.batches(3, 1, seeded())
    assert len(batch["nodes"]) == 7
