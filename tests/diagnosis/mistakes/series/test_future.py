"""Models that see the steps that they are to predict."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import equipoise as eq
from equipoise.diagnosis.mistakes.series.future import of_future
from support.token_models import (
    PAIR,
    TOKENS,
    Attention,
    Recurrent,
    StepsFirst,
    shifted_loss,
    steps_first_loss,
    tokens_loss,
)
from support.traced_passes import traced_pass

WAVES = torch.randn(16, 24, 3, generator=torch.Generator().manual_seed(0)).cumsum(1)


class Autoencoder(nn.Module):
    """A decoder is given each step before its target, and what an encoder makes of all."""

    def __init__(self):
        super().__init__()
        self.embed, self.last = nn.Embedding(11, 8), nn.Linear(8, 11)
        self.encode, self.decode = (nn.GRU(8, 8, batch_first=True) for _ in range(2))

    def forward(self, tokens):
        _, state = self.encode(self.embed(tokens))
        return self.last(self.decode(self.embed(tokens[:, :-1]), state)[0])


class Filters(nn.Module):
    """Convolutions over time, padded on one side or on both."""

    def __init__(self, left, right, norm=None):
        super().__init__()
        self.padding, self.first = (left, right), nn.Conv1d(3, 16, 3)
        self.norm, self.last = norm or nn.Identity(), nn.Conv1d(16, 3, 1)

    def forward(self, x):
        x = F.pad(x.mT, self.padding)
        return self.last(self.norm(self.first(x)).relu()).mT


def waves_loss(model, batch):
    return F.mse_loss(model(batch[0]), batch[1])


def severities(model, batch, loss):
    torch.manual_seed(0)
    return [one.severity for one in of_future(traced_pass(model, batch, loss))]


class TestTokens:
    @pytest.mark.parametrize(
        "model",
        [
            Attention(mask=lambda x: x),
            Attention(mask=torch.triu),
            Attention(fill=0.0),
            Attention(axis=-2, fill=-1e9),
            Recurrent(bidirectional=True),
        ],
    )
    def test_that_are_seen(self, model):
        model(PAIR[0])
        assert severities(model, PAIR, tokens_loss) == ["critical"]
        assert severities(model, TOKENS, shifted_loss) == ["critical"]
        by_name = {"tokens": TOKENS, "labels": TOKENS}
        loss = lambda m, b: shifted_loss(m, b["tokens"])  # noqa: E731
        assert severities(model, by_name, loss) == ["critical"]

    @pytest.mark.parametrize("rows", [False, True])
    @pytest.mark.parametrize("flat", [False, True])
    @pytest.mark.parametrize(("mask", "expected"), [(lambda x: x, ["critical"]), (torch.tril, [])])
    def test_with_steps_first(self, mask, expected, rows, flat):
        """As recurrent layers take them, with targets that may be flat already."""
        inputs, targets = (x.t().contiguous() for x in PAIR)
        batch = inputs, targets.flatten() if flat else targets
        model = StepsFirst(Attention(mask=mask), rows)
        assert severities(model, batch, steps_first_loss) == expected

    @pytest.mark.parametrize(("mask", "expected"), [(lambda x: x, ["critical"]), (torch.tril, [])])
    def test_that_a_model_makes_rows_of(self, mask, expected):
        """As the Transformer of "attention is all you need", whose logits have a row per step."""

        class Flat(Attention):
            def forward(self, tokens):
                return super().forward(tokens).flatten(0, 1)

        def flat_loss(model, batch):
            return F.cross_entropy(model(batch[0]), batch[1].flatten())

        assert severities(Flat(mask=mask), PAIR, flat_loss) == expected

    def test_as_many_features_as_samples(self):
        """A layer's rows are those of all steps, whatever is behind them."""

        class Deeper(Attention):
            def forward(self, tokens):
                return super().forward(tokens) @ self.back.weight.T

        model = Deeper(mask=lambda x: x)
        model.back, model.last = nn.Linear(16, 11), nn.Linear(16, 16)
        assert severities(model, PAIR, tokens_loss) == ["critical"]

    @pytest.mark.parametrize("model", [Attention(), Attention(fill=-1e9), Recurrent()])
    def test_that_are_not_seen(self, model):
        model(PAIR[0])
        assert severities(model, PAIR, tokens_loss) == []
        assert severities(model, TOKENS, shifted_loss) == []

    def test_that_are_ignored(self):
        """As of a prefix that is given as a whole."""
        hidden = PAIR[1].clone()
        hidden[:, :12] = -100
        assert severities(Attention(mask=lambda x: x), (PAIR[0], hidden), tokens_loss) == []

    def test_other_targets(self):
        everything = Attention(mask=lambda x: x)
        for target in (PAIR[0], PAIR[1].roll(1, 0), PAIR[1].flip(1), PAIR[1] % 5):
            assert severities(everything, (PAIR[0], target), tokens_loss) == []
        constant = torch.ones_like(PAIR[0])
        assert severities(everything, (constant, constant), tokens_loss) == []

    def test_a_sequence_that_an_encoder_is_given(self):
        def repeated(model, tokens):
            return F.cross_entropy(model(tokens).mT, tokens[:, 1:])

        def leading(model, tokens):
            return F.cross_entropy(model(tokens[:, :-1]).mT, tokens[:, 1:])

        assert severities(Autoencoder(), TOKENS, repeated) == []
        assert severities(Attention(mask=torch.ones_like), TOKENS, leading) == ["critical"]

    def test_a_sequence_that_is_copied(self):
        class Copying(nn.Module):
            def __init__(self):
                super().__init__()
                self.read, self.write = Attention(mask=lambda x: x), Attention()

            def forward(self, source, written):
                return self.write(written) + self.read(source)

        loss = lambda m, b: F.cross_entropy(m(b[0], b[1])[:, :-1].mT, b[1][:, 1:])  # noqa: E731
        assert severities(Copying(), (TOKENS.clone(), TOKENS), loss) == []

    def test_a_prefix_that_is_seen_as_a_whole(self):
        """Its steps count for nothing in the loss, whatever says so."""
        lengths = 4 + torch.arange(16) % 12

        class Prefixed(Attention):
            def forward(self, tokens):
                place = torch.arange(tokens.shape[1])
                self.mask = lambda x: (place <= place[:, None]) | (place < lengths[:, None, None])
                return super().forward(tokens)

        counts = torch.arange(1, 20) >= lengths[:, None]

        def by_weight(model, batch):
            losses = F.cross_entropy(model(batch[0]).mT, batch[1], reduction="none")
            return (losses * counts).sum() / counts.sum()

        ignored = PAIR[1].masked_fill(~counts, -100)
        assert severities(Prefixed(), (PAIR[0], ignored), tokens_loss) == []
        assert severities(Prefixed(), PAIR, by_weight) == []
        assert severities(Attention(mask=lambda x: x), PAIR, by_weight) == ["critical"]

    @pytest.mark.parametrize("shared", [True, False])
    def test_an_autoencoder_whose_decoder_is_given_the_steps_before(self, shared):
        class Sentences(nn.Module):
            def __init__(self):
                super().__init__()
                self.read, self.write = Recurrent(), Recurrent()
                self.law, self.start = nn.Linear(16, 4), nn.Linear(4, 16)

            def forward(self, tokens):
                read, write = self.read, self.read if shared else self.write
                x = read.embed(tokens)
                state = self.start(self.law(read.steps(x)[1][0]))
                y = x[:, :-1] if shared else write.embed(tokens[:, :-1])
                return self.write.last(self.write.steps(y)[0] + state[:, None])

        model = Sentences()
        model.read(TOKENS), model.write(TOKENS)
        loss = lambda m, b: F.cross_entropy(m(b).mT, b[:, 1:])  # noqa: E731
        assert severities(model, TOKENS, loss) == []

    @pytest.mark.parametrize(("mask", "expected"), [(None, ["critical"]), ("causal", [])])
    def test_a_decoder_with_a_mask_of_its_padding(self, mask, expected):
        class Translating(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed, self.last = nn.Embedding(11, 16), nn.Linear(16, 11)
                self.net = nn.Transformer(16, 2, 1, 1, 32, 0.0, batch_first=True)

            def forward(self, source, before):
                steps = before.shape[1]
                causal = torch.ones(steps, steps, dtype=torch.bool).triu(1) if mask else None
                padding = before == 0
                x, y = self.embed(source), self.embed(before)
                y = self.net(x, y, tgt_mask=causal, tgt_key_padding_mask=padding)
                return self.last(y)

        def loss(model, batch):
            logits = model(batch[0], batch[1][:, :-1]).flatten(0, 1)
            return F.cross_entropy(logits, batch[1][:, 1:].flatten(), ignore_index=0)

        padded = TOKENS.masked_fill(torch.arange(20) > 14, 0)
        source = torch.randint(1, 11, (16, 12), generator=torch.Generator().manual_seed(1))
        assert severities(Translating(), (source, padded), loss) == expected

    def test_what_is_restored(self):
        class Restoring(nn.Module):
            def __init__(self):
                super().__init__()
                self.read, self.write = Attention(mask=lambda x: x), Attention()

            def forward(self, broken, before):
                seen = self.read(broken).softmax(-1) @ self.read.last.weight
                return self.write(before) + seen[:, : before.shape[1]] @ self.write.last.weight.T

        def loss(model, batch):
            broken = batch.masked_fill(torch.rand(batch.shape) < 0.3, 0)
            return F.cross_entropy(model(broken, batch[:, :-1]).mT, batch[:, 1:])

        assert severities(Restoring(), TOKENS, loss) == []

    def test_two_directions_that_predict_a_side_each(self):
        class Sides(Recurrent):
            def forward(self, tokens):
                x = self.embed(tokens)
                ways = self.steps(x)[0], self.steps(x.flip(1))[0].flip(1)
                return torch.stack([self.last(way) for way in ways], 2)

        def loss(model, batch):
            after, before = model(batch).unbind(2)
            return F.cross_entropy(after[:, :-1].mT, batch[:, 1:]) + F.cross_entropy(
                before[:, 1:].mT, batch[:, :-1]
            )

        model = Sides()
        model(TOKENS)
        assert severities(model, TOKENS, loss) == []


class TestSeries:
    @pytest.mark.parametrize(
        ("model", "expected"),
        [
            (Filters(2, 0), []),
            (Filters(2, 0, nn.BatchNorm1d(16)), []),
            (Filters(1, 1), ["critical"]),
            (Filters(2, 0, nn.GroupNorm(1, 16)), ["warning"]),  # a trace of later steps
            (nn.Linear(3, 3), []),
        ],
    )
    def test_of_numbers(self, model, expected):
        batch = WAVES[:, :-1], WAVES[:, 1:]
        assert severities(model, batch, waves_loss) == expected

    def test_the_last_step_alone_is_judged(self):
        def last(model, batch):
            by_step = (model(batch[0]) - batch[1]).square().mean((0, 2))
            return by_step @ F.one_hot(torch.tensor(22), 23).float()

        assert severities(Filters(1, 1), (WAVES[:, :-1], WAVES[:, 1:]), last) == []

    def test_a_scale_that_is_taken_of_all_steps(self):
        class Scaled(Filters):
            def forward(self, x):
                scale = x.abs().mean(1, keepdim=True) + 0.1
                return super().forward(x / scale) * scale

        batch = WAVES[:, :-1], WAVES[:, 1:]
        assert severities(Scaled(2, 0), batch, waves_loss) == []

    def test_what_moves_around_a_circle(self):
        """As a wave does, whose positions are no steps."""
        batch = WAVES, WAVES.roll(-1, 1)
        assert severities(Filters(1, 1), batch, waves_loss) == []

    def test_differences_inside_of_a_model_are_no_loss(self):
        class Changes(nn.Linear):
            def forward(self, x):
                return super().forward(F.pad(x[:, 1:] - x[:, :-1], (0, 0, 0, 1)))

        batch = WAVES, torch.arange(16) % 3
        loss = lambda m, b: F.cross_entropy(m(b[0]).mean(1), b[1])  # noqa: E731
        assert severities(Changes(3, 3), batch, loss) == []


def test_the_check_up_says_so():
    found = eq.checkup(lambda: Attention(mask=lambda x: x), PAIR)
    assert found.verdict.sentence == (
        "Not ready to train: the model sees the steps that it is to predict"
    )
