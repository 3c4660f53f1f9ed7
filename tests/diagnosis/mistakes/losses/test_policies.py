"""Losses of policies with parts of the wrong sign."""

import copy
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Normal
from torch.nn import functional as F

from equipoise.diagnosis.mistakes.losses.policies import of_policies
from support.traced_passes import found_by, traced_pass

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(32, 6, generator=GENERATOR)
ACTIONS = torch.randint(4, (32,), generator=GENERATOR)
ADVANTAGES, BEFORE = torch.randn(2, 32, generator=GENERATOR)
TURNED = ("critical", "The policy's loss has its sign turned")
SURE = ("warning", "The entropy of the policy counts with the wrong sign")


class Rollout(NamedTuple):
    """As a buffer of Stable-Baselines3 gives it."""

    observations: torch.Tensor
    actions: torch.Tensor
    advantages: torch.Tensor


BATCH = Rollout(X, ACTIONS, ADVANTAGES)


def policy():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))


def found(loss, batch=tuple(BATCH), model=None):
    model = policy() if model is None else model
    return found_by(of_policies, model, batch, loss)


def chosen(model, batch):
    return model(batch[0]).log_softmax(1).gather(1, batch[1][:, None]).squeeze(1)


def smaller_gain(model, batch):
    ratio = (chosen(model, batch) + 1.5 - 0.1 * BEFORE).exp()
    gains = ratio * batch[2], ratio.clamp(0.8, 1.2) * batch[2]
    return -torch.min(*gains).mean()


def larger_loss(model, batch):
    """As in CleanRL."""
    ratio = (Categorical(logits=model(batch[0])).log_prob(batch[1]) + 1.5 - 0.1 * BEFORE).exp()
    losses = -batch[2] * ratio, -batch[2] * ratio.clamp(0.8, 1.2)
    return torch.max(*losses).mean()


def of_a_normal_law(model, batch):
    actions = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    law = Normal(model(batch[0]), 1.0)
    ratio = (law.log_prob(actions).sum(1) + 8 - 0.1 * BEFORE).exp()
    return -torch.min(ratio * batch[2], ratio.clamp(0.8, 1.2) * batch[2]).mean()


@pytest.mark.parametrize("loss", [smaller_gain, larger_loss, of_a_normal_law])
def test_the_clipped_objective_and_its_negative(loss):
    assert found(loss) == []
    assert found(lambda model, batch: -loss(model, batch)) == [TURNED]


def plain(model, batch):
    weights = (batch[2] - batch[2].mean()) / (batch[2].std() + 1e-8)
    return -(chosen(model, batch) * weights).mean()


def turned(model, batch):
    return -plain(model, batch)


@pytest.mark.parametrize(
    "kind",
    [
        Rollout,
        lambda x, a, w: {0: x, 1: a, 2: w, "advantages": w},
        lambda x, a, w: {0: x, 1: a, 2: w, "mb_adv": w},
        lambda x, a, w: {0: x, 1: a, 2: w, "ret": w},
    ],
)
def test_advantages_are_known_by_their_name(kind):
    batch = kind(*BATCH)
    assert found(plain, batch) == []
    assert found(turned, batch) == [TURNED]


def test_numbers_without_a_name_may_be_costs():
    assert found(turned) == []
    assert found(turned, {0: X, 1: ACTIONS, 2: ADVANTAGES, "retained": ADVANTAGES}) == []


def rewarded(model, batch):
    observed, action, reward = batch
    return -(model(observed).log_softmax(1).gather(1, action[:, None])[:, 0] * reward).mean()


def rewarded_in_one(model, batch):
    observed, action, reward = batch
    return (F.cross_entropy(model(observed), action, reduction="none") * reward).mean()


def costly(model, batch):
    observed, action, cost = batch
    return (Categorical(logits=model(observed)).log_prob(action) * cost).mean()


@pytest.mark.parametrize(
    ("loss", "shift"),
    [
        (rewarded, 0.0),
        (rewarded, 9.0),
        (rewarded_in_one, 0.0),
        (rewarded_in_one, 9.0),
        (costly, 0.0),
    ],
)
def test_names_that_a_loss_gives_the_batch(loss, shift):
    """Rewards of one sign, too."""
    batch = X, ACTIONS, ADVANTAGES + shift
    assert found(loss, batch) == []
    assert found(lambda model, batch: -loss(model, batch), batch) == [TURNED]


def missed(model, batch):
    observed, label, cost = batch
    return (F.cross_entropy(model(observed), label, reduction="none") * cost).mean()


def test_costs_of_one_sign_may_be_those_of_mistakes():
    """As of classes that are weighed by what it costs to miss them."""
    assert found(missed, (X, ACTIONS, ADVANTAGES.abs())) == []
    assert found(missed, (X, ACTIONS, ADVANTAGES)) == [TURNED]


def weighed_errors(model, batch):
    """A regression that counts samples by their reward makes errors small."""
    observed, action, reward = batch
    error = (model(observed) - F.one_hot(action, 4)).square().sum(1)
    return (error * reward).mean()


def test_weighed_errors_are_no_probabilities():
    assert found(weighed_errors, (X, ACTIONS, ADVANTAGES + 9)) == []


def entropy(model, batch):
    logarithms = model(batch[0]).log_softmax(1)
    return -(logarithms.exp() * logarithms).sum(1).mean()


def entropy_of_a_law(model, batch):
    return Categorical(logits=model(batch[0])).entropy().mean()


class Once(nn.Module):
    """A policy that is run once for all terms of a loss."""

    def __init__(self):
        super().__init__()
        self.layers, self.last = policy(), None

    def forward(self, x):
        if self.last is None or self.last[0] is not x:
            self.last = x, self.layers(x)
        return self.last[1]


@pytest.mark.parametrize("loss", [plain, smaller_gain, larger_loss])
@pytest.mark.parametrize("measure", [entropy, entropy_of_a_law])
@pytest.mark.parametrize(("coefficient", "expected"), [(-0.01, []), (0.01, [SURE])])
def test_entropies(loss, measure, coefficient, expected):
    def whole(model, batch):
        run = Once()
        run.layers = model
        return loss(run, batch) + coefficient * measure(run, batch)

    assert found(whole) == expected


def test_entropies_of_classes_are_made_small_on_purpose():
    """As where labels are few."""

    def loss(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1]) + 0.1 * entropy(model, batch)

    assert found(loss) == []


class Critic(nn.Module):
    """Logits of actions, and a value."""

    def __init__(self):
        super().__init__()
        self.body, self.actions, self.value = nn.Linear(6, 16), nn.Linear(16, 4), nn.Linear(16, 1)

    def forward(self, x):
        h = self.body(x).tanh()
        return self.actions(h), self.value(h)[:, 0]


@pytest.mark.parametrize("detaches", [True, False])
def test_advantages_have_no_gradient(detaches):
    def loss(model, batch):
        observed, action, came = batch
        logits, value = model(observed)
        advantage = came - value
        score = Categorical(logits=logits).log_prob(action)
        weight = advantage.detach() if detaches else advantage
        return advantage.square().mean() - (score * weight).mean()

    titles = [title for _, title in found(loss, (X, ACTIONS, ADVANTAGES), Critic())]
    assert titles == ["Advantages have a gradient"] * (not detaches)


class Values(nn.Module):
    """Values of actions, by two networks, and copies that are not trained."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.other = nn.Linear(4, 3), nn.Linear(4, 3)
        self.target = copy.deepcopy(self.q).requires_grad_(False)


def transitions():
    generator = torch.Generator().manual_seed(0)
    state, following = torch.randn(2, 16, 4, generator=generator)
    action = torch.randint(3, (16,), generator=generator)
    done = (torch.rand(16, generator=generator) < 0.2).float()
    return state, action, torch.rand(16, generator=generator), following, done


def best(model, following):
    return model.target(following).max(1).values


def double(model, following):
    """The value of the action that the trained network would take."""
    action = model.q(following).argmax(1, keepdim=True)
    return model.target(following).gather(1, action)[:, 0]


def lesser(model, following):
    return torch.minimum(best(model, following), model.other(following).max(1).values)


def cheapest(model, following):
    return model.target(following).min(1).values


TURNED_VALUES = [("critical", "Values learn the reward with its sign turned")]


def learnt(of_reward, following=best):
    def loss(model, batch):
        state, action, reward, after, done = batch
        value = model.q(state).gather(1, action[:, None])[:, 0]
        with torch.no_grad():
            target = of_reward(reward) + 0.9 * following(model, after) * (1 - done)
        return F.smooth_l1_loss(value, target)

    found = of_policies(traced_pass(Values(), transitions(), loss))
    return [(one.severity, one.title) for one in found]


@pytest.mark.parametrize("following", [best, double, lesser])
@pytest.mark.parametrize("turn", [lambda r: -r, lambda r: -1.0 * r, lambda r: 0.5 - r / 2])
def test_values_of_turned_rewards(turn, following):
    assert learnt(turn, following) == TURNED_VALUES


@pytest.mark.parametrize("following", [best, double, lesser, cheapest])
@pytest.mark.parametrize("scaled", [lambda r: r, lambda r: r / 10 - 1, lambda r: r.clamp(0, 1)])
def test_values_of_rewards(scaled, following):
    assert learnt(scaled, following) == []


def least_by_the_trained(model, following):
    action = model.q(following).argmin(1, keepdim=True)
    return model.target(following).gather(1, action)[:, 0]


def least_as_most(model, following):
    return -(-model.target(following)).max(1).values


def softly(model, following):
    return -(-model.target(following)).logsumexp(1)


def of_the_policy(model, following):
    return model.target(following)[:, 0]


@pytest.mark.parametrize(
    "following", [cheapest, least_by_the_trained, least_as_most, softly, of_the_policy]
)
def test_costs_to_go_are_of_turned_rewards(following):
    """So they are where the least of what follows is taken, or nothing is chosen."""
    assert learnt(lambda r: -r, following) == []


def test_costs_that_are_compared_with_turned_values():
    def loss(model, batch):
        state, action, reward, after, _ = batch
        with torch.no_grad():
            target = -(reward + 0.9 * best(model, after))
        return F.mse_loss(-model.q(state).gather(1, action[:, None])[:, 0], target)

    assert of_policies(traced_pass(Values(), transitions(), loss)) == []


def test_targets_behind_many_gates_are_followed_once():
    """Each of these operations has the last one's output on two ways."""

    def gated(model, following):
        value = model.target(following)[:, 0]
        for _ in range(40):
            value = value + 0.1 * value
        return value

    assert learnt(lambda r: -r, gated) == []


def test_rewards_that_are_predicted_alone_may_be_costs():
    def loss(model, batch):
        state, _, reward, _, _ = batch
        return F.mse_loss(model.q(state)[:, 0], -reward)

    assert of_policies(traced_pass(Values(), transitions(), loss)) == []


def bootstrapped(choose, detach, name="came"):
    """Squared error of values and what came, plus what is chosen of those that follow."""

    def loss(model, batch):
        value = model(batch["x"]).gather(1, batch["action"][:, None]).squeeze(1)
        target = batch[name] + 0.9 * detach(choose(model(batch["next"]))) * (1 - batch["done"])
        return F.smooth_l1_loss(value, target)

    batch = {"x": X, "action": ACTIONS, name: ADVANTAGES, "next": X.flip(0), "done": X[:, 0] > 2}
    return found(loss, batch | {"done": batch["done"].float()})


LEARNT = ("warning", "The targets of values have a gradient")


def highest(values):
    return values.max(1).values


def kept(values):
    return values


def test_targets_of_values_have_no_gradient():
    assert bootstrapped(highest, kept) == [LEARNT]
    assert bootstrapped(highest, torch.Tensor.detach) == []


def test_nor_have_values_that_follow_a_reward():
    """Differences of a model's outputs that are told are no values, without that name."""
    mean = lambda values: values.mean(1)  # noqa: E731
    assert bootstrapped(mean, kept, "reward") == [LEARNT]
    assert bootstrapped(mean, torch.Tensor.detach, "reward") == []
    assert bootstrapped(mean, kept) == []
