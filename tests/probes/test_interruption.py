"""What Ctrl-C leaves of a measurement, and what no probe reads."""

import pytest
import torch
from torch import nn

from equipoise.instrument.modules import unwatched
from equipoise.probes import GrowthInterrupted, gradient_growth


def squares(model, batch):
    return model(batch).square().mean()


def interrupt_at(step):
    def progress(stage, done, total):
        if done == step:
            raise KeyboardInterrupt

    return progress


class TestInterruption:
    batches = (torch.ones(5, 4), torch.zeros(5, 4) + 0.5)

    def measure(self, progress=None, replicates=3):
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 1))
        return gradient_growth(
            model, squares, self.batches, replicates=replicates, progress=progress
        )

    @pytest.mark.parametrize(("step", "finished"), [(3, 1), (4, 1), (5, 2)])
    def test_finished_replicates_are_kept(self, step, finished):
        """Two batches each: a replicate counts once both are done and noted."""
        with pytest.raises(GrowthInterrupted) as interruption:
            self.measure(interrupt_at(step))
        kept = interruption.value.finished
        assert (kept.replicates, kept.batches) == (finished, 2)

    def test_they_are_the_same_as_without_interruption(self):
        with pytest.raises(GrowthInterrupted) as interruption:
            self.measure(interrupt_at(5))
        assert interruption.value.finished == self.measure(replicates=2)

    def test_before_the_first_is_finished_there_is_nothing_to_keep(self):
        with pytest.raises(KeyboardInterrupt) as interruption:
            self.measure(interrupt_at(1))
        assert not isinstance(interruption.value, GrowthInterrupted)


def test_a_model_built_under_the_probes_own_seed_is_drawn_anew():
    """Seed 0 is the probe's default and everybody's favourite."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 1))
    growth = gradient_growth(model, squares, [torch.ones(5, 4)], replicates=2, seed=0)
    assert growth.replicates == 2


class TestUnwatched:
    def test_packed_attention_and_recurrent_cells_are_named(self):
        model = nn.ModuleDict(
            {
                "attention": nn.MultiheadAttention(8, 2),
                "cell": nn.LSTM(3, 5),
                "head": nn.Linear(5, 2),
            }
        )
        assert unwatched(model) == {
            "attention (MultiheadAttention)": 3 * 8 * 8,
            "cell (LSTM)": 4 * 5 * (3 + 5),
        }

    def test_linear_convolutional_normalising_and_embedding_layers_are_not(self):
        layers = (nn.Linear(2, 2), nn.Conv2d(1, 2, 3), nn.BatchNorm1d(2), nn.Embedding(4, 2))
        assert unwatched(nn.ModuleList(layers)) == {}
