"""LSTMs as the operations of every step."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from equipoise.instrument.recording.tracer import trace
from equipoise.instrument.recording.unrolled import MOST_RUNS

WHOLE = "mkldnn_rnn_layer"


def drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def summed(model, x):
    return model(x)[0].square().mean()


def packed(model, x):
    lengths = torch.tensor([x.shape[1]] * (len(x) - 1) + [2])
    return model(pack_padded_sequence(x, lengths, batch_first=True))[1][0].square().mean()


def operations(model, x, loss=summed):
    return [node.name for node in trace(model, x, loss).nodes]


class TestRuns:
    """Up to a number of runs, each has its own operations; a longer layer remains one."""

    @pytest.mark.parametrize("loss", [summed, packed])
    @pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"num_layers": 2}])
    def test_few(self, loss, options):
        steps = 4
        names = operations(nn.LSTM(3, 5, batch_first=True, **options), drawn(6, steps, 3), loss)
        assert WHOLE not in names
        if loss is summed:
            assert names.count("tanh") == 2 * steps * (2 if options else 1)

    @pytest.mark.parametrize("layers", [1, 8])
    def test_many(self, layers):
        model = nn.LSTM(3, 5, num_layers=layers, batch_first=True)
        names = operations(model, drawn(6, MOST_RUNS // layers + 1, 3))
        assert names.count(WHOLE) == layers
        assert "tanh" not in names


def test_loss_and_gradients_are_those_of_the_whole():
    torch.manual_seed(0)
    model, x = nn.LSTM(3, 5, num_layers=2).double(), drawn(4, 6, 3).double()
    loss = summed(model, x)
    loss.backward()
    graph = trace(model, x, summed)
    assert graph.loss == pytest.approx(loss.item(), rel=1e-12)
    squares = {name: float(p.grad.square().mean()) for name, p in model.named_parameters()}
    assert graph.weights == pytest.approx(squares, rel=1e-9)


def test_the_flag_is_as_it_was():
    before = torch.backends.mkldnn.enabled
    trace(nn.LSTM(3, 5), drawn(4, 6, 3), summed)
    assert torch.backends.mkldnn.enabled == before
