"""The four sets of data."""

import math

import pytest
import torch

from equipoise_papers.trainability.tasks import TEXT_LENGTH, Task, task
from papers_support.trainability_examples import network


def of(data):
    return task(network("attention" if data == "text" else "dense", data=data))


@pytest.mark.parametrize("data", ["digits", "shapes", "text"])
class TestTasks:
    def test_classes_are_within_their_number(self, data):
        found = of(data)
        assert 0 <= int(found.targets.min()) <= int(found.targets.max()) < found.classes
        assert len(found.inputs) == len(found.targets) >= 1000

    def test_guessing_costs_the_entropy_of_the_classes(self, data):
        assert 0 < of(data).chance_loss <= math.log(of(data).classes) + 1e-9

    def test_batches_follow_their_seed(self, data):
        (first, _), (again, _), (other, _) = (next(of(data).batches(4, 1, s)) for s in (1, 1, 2))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)


def test_targets_of_text_are_the_next_characters():
    found = of("text")
    assert found.is_text
    assert found.inputs.shape[1] == TEXT_LENGTH
    assert torch.equal(found.inputs[:, 1:], found.targets[:, :-1])


def test_the_entropy_of_equal_classes():
    even = Task(torch.zeros(8, 1), torch.arange(8) % 4, 4)
    assert even.chance_loss == pytest.approx(math.log(4))
    single = Task(torch.zeros(8, 1), torch.zeros(8, dtype=torch.long), 4)
    assert single.chance_loss == 0
