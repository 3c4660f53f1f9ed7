"""What a batch holds, whatever it is."""

import itertools

import pytest
import torch

from equipoise.instrument.batches import fields, rows, samples
from equipoise.instrument.recording.tracer import trace
from equipoise.theory.propagation.propagate import propagate


class Graphs:
    """As PyTorch Geometric joins graphs: attributes by name, whose order is that of a set."""

    def __init__(self, order=("y", "x", "edge_index"), joined=None, nodes=12):
        torch.manual_seed(0)
        self.values = {
            "x": torch.randn(nodes, 5),
            "edge_index": torch.randint(nodes, (2, 30)),
            "y": torch.randint(3, (joined or nodes,)),
        }
        self.order, self.num_nodes = order, nodes
        if joined is not None:
            self.num_graphs = joined
            self.values["batch"] = torch.arange(nodes) * joined // nodes
            self.order += ("batch",)

    def keys(self):
        return list(self.order)

    def __getitem__(self, name):
        return self.values[name]


@pytest.mark.parametrize("order", list(itertools.permutations(("x", "y", "edge_index"))))
def test_nodes_are_counted_in_whatever_order_they_come(order):
    assert samples(Graphs(order)) == 12
    assert list(fields(Graphs(order))) == ["edge_index", "x", "y"]


def test_joined_graphs_have_two_numbers_of_rows():
    assert samples(Graphs(joined=4)) == 4
    assert rows(Graphs(joined=4)) == (4, 12)
    assert rows((torch.ones(8, 3), torch.ones(8))) == (8,)


class Pooled(torch.nn.Module):
    """Layers of nodes, sums over each graph, and a layer of graphs."""

    def __init__(self):
        super().__init__()
        self.nodes, self.head = torch.nn.Linear(5, 64), torch.nn.Linear(64, 3)

    def forward(self, graphs):
        x = self.nodes(graphs["x"]).relu()
        sums = torch.zeros(graphs.num_graphs, 64).index_add(0, graphs["batch"], x)
        return self.head(sums)


def test_layers_of_nodes_and_of_graphs_are_predicted():
    batch = Graphs(joined=4)
    graph = trace(
        Pooled(), batch, lambda model, b: torch.nn.functional.cross_entropy(model(b), b["y"])
    )
    layers = [site for site in propagate(graph).sites if site.operation == "addmm"]
    assert [site.is_predicted for site in layers] == [True, True]
    for site in layers:
        assert site.second_moment == pytest.approx(site.measured_second_moment, rel=0.5)
