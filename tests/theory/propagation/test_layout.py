"""Axes are followed as PyTorch moves elements, or an error says that they cannot be."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.theory.propagation.layout import Atom, Axis, Layout, LayoutError

BATCH = Layout.of_batch((8, 4, 6))


def original_order(values, layout, order):
    """Undo all moves of a tensor with a followed layout."""
    atoms = layout.atoms
    wanted = [atoms.index(atom) for atom in order if atom in atoms]
    return values.reshape([atom.size for atom in atoms]).permute(wanted).flatten()


class TestViews:
    def test_split_an_axis_and_merge_it_again(self):
        apart, parts = BATCH.viewed((8, 4, 2, 3))
        (pieces,) = parts.values()
        assert [atom.size for atom in pieces] == [2, 3]
        assert {atom.role for atom in pieces} == {"open"}
        together, more = apart.viewed((8, 4, 6))
        assert together.axes[2] == pieces
        assert more == {}

    def test_merge_axes(self):
        merged, parts = BATCH.viewed((32, 6))
        assert merged.axes == ((*BATCH.axes[0], *BATCH.axes[1]), BATCH.axes[2])
        assert parts == {}

    def test_split_one_atom_twice(self):
        """All pieces are listed under the atom that they come from."""
        layout = Layout.of_batch((2, 24))
        split, parts = layout.viewed((2, 2, 3, 4))
        assert parts == {layout.axes[1][0]: split.atoms[1:]}

    def test_add_and_drop_axes_of_length_1(self):
        layout, parts = Layout.of_batch((8, 1, 6)).viewed((1, 8, 6, 1))
        assert [len(axis) for axis in layout.axes] == [0, 1, 1, 0]
        assert parts == {}

    @pytest.mark.parametrize("shape", [(12, 6), (12, 1, 6), (72,)])
    def test_a_batch_of_one_keeps_its_axis(self, shape):
        """Linear layers and attention take it away, and theory ended there."""
        layout, _ = Layout.of_batch((1, 12, 6)).viewed(shape)
        assert layout.shape == shape
        assert [atom.size for atom in layout.atoms if atom.role == "sample"] == [1]
        again, _ = layout.viewed((1, 12, 6))
        assert [atom.role for atom in again.axes[0]] == ["sample"]

    @pytest.mark.parametrize("shape", [(6, 4), (3, 8), (24,), (4, 12)])
    def test_that_mix_two_atoms_or_change_the_size_are_refused(self, shape):
        layout = Layout.of_batch((4, 6))
        if shape == (24,):
            assert layout.viewed(shape)[0].shape == shape
            return
        with pytest.raises(LayoutError, match=r"a view of \(4, 6\) as"):
            layout.viewed(shape)


class TestRoles:
    def test_samples_come_first_and_all_else_is_open(self):
        assert [atom.role for atom in BATCH.atoms] == ["sample", "open", "open"]
        assert (BATCH.size("sample"), BATCH.size("open"), BATCH.size("feature")) == (8, 24, 1)

    def test_only_open_atoms_are_given_one(self):
        roles = [atom.role for atom in BATCH.with_open_as("position").atoms]
        assert roles == ["sample", "position", "position"]

    def test_pieces_of_an_atom_keep_it(self):
        layout, _ = BATCH.with_open_as("feature").viewed((2, 4, 4, 6))
        assert [atom.role for atom in layout.atoms] == ["sample"] * 2 + ["feature"] * 2

    def test_short_positions_are_dropped_short_features_stay(self):
        one, feature = Atom.new("position", 1), Atom.new("feature", 1)
        layout = Layout(((one,), (feature,)))
        assert layout.without_short_axes().axes == ((), (feature,))

    def test_atoms_of_one_size_differ(self):
        assert Atom.new("feature", 3) != Atom.new("feature", 3)


def splits(size):
    return [(a, size // a) for a in range(2, size) if size % a == 0]


class TestAnyMoves:
    """A layout knows where every element of a tensor came from."""

    @settings(max_examples=60)
    @given(data=st.data())
    def test_can_be_undone(self, data):
        shape = data.draw(st.lists(st.sampled_from([2, 3, 4, 6]), min_size=1, max_size=3))
        layout = Layout.of_batch(shape)
        values, order = torch.arange(math.prod(shape)).reshape(shape), list(layout.atoms)
        for _ in range(4):
            axes = list(values.shape)
            kind = data.draw(st.sampled_from(["split", "merge", "permute"]))
            if kind == "permute":
                moved = data.draw(st.permutations(range(len(axes))))
                values, layout = values.permute(moved), layout.permuted(moved)
                continue
            i = data.draw(st.integers(0, len(axes) - 1))
            if kind == "merge" and i + 1 < len(axes):
                axes[i : i + 2] = [axes[i] * axes[i + 1]]
            elif kind == "split" and splits(axes[i]) and single(layout.axes[i]):
                axes[i : i + 1] = data.draw(st.sampled_from(splits(axes[i])))
            layout, parts = layout.viewed(axes)
            values = values.reshape(axes)
            order = [piece for atom in order for piece in parts.get(atom, (atom,))]
        assert layout.shape == tuple(values.shape)
        assert original_order(values, layout, order).tolist() == list(range(values.numel()))

    def test_a_wrong_order_would_be_noticed(self):
        layout = Layout.of_batch((2, 3))
        values, order = torch.arange(6).reshape(2, 3), layout.atoms
        assert original_order(values.T, layout.permuted((1, 0)), order).tolist() == [*range(6)]
        assert original_order(values.T, layout, order).tolist() != [*range(6)]


def single(axis: Axis) -> bool:
    return len(axis) == 1
