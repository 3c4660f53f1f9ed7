"""Follow attention from the product of queries and keys to that with values."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from equipoise.theory.propagation.call import Call, Pulled, Result, chained, unfinished
from equipoise.theory.propagation.layout import UnpredictedError
from equipoise.theory.propagation.rules.attention import outputs, scores
from equipoise.theory.propagation.rules.attention.linear import products
from equipoise.theory.propagation.rules.attention.scores import Scores
from equipoise.theory.propagation.values.known import Unfinished
from equipoise.theory.propagation.values.moments import Moments, Value


class Steps:
    """Sums of values and of their weights, until the ones are divided by the others."""

    def __init__(self) -> None:
        self._weighed: dict[Hashable, products.Weighed] = {}
        self._weights: dict[Hashable, products.Weights] = {}

    def copy(self) -> Steps:
        """Another that knows the same."""
        other = Steps()
        other._weighed, other._weights = dict(self._weighed), dict(self._weights)
        return other

    def result(self, call: Call, leaves: Sequence[Value | Unfinished]) -> Result | None:
        """What an operation gives as a step of attention; None if it is none."""
        begun = next((leaf for leaf in leaves if isinstance(leaf, products.Product)), None)
        if begun is not None:
            return self._continued(call, begun)
        if (product := products.inner_product(call)) is not None:
            return self._noted(*product)
        if call.node.name in ("mul", "div") and (divided := self._over_weights(call)) is not None:
            return divided
        if (state := products.state_of(call)) is not None:
            return unfinished(call.node, state)
        if scores.is_product_of_moments(call):
            return unfinished(call.node, scores.of_product(call))
        return None

    def of_sum(self, call: Call, result: Result) -> Result:
        """The result of a sum, noted if it is one of weights."""
        product = products.sum_of_products(call, result)
        return result if product is None else self._noted(*product)

    def _noted(self, result: Result, weights: products.Weights) -> Result:
        self._weights[weights.output.latent] = weights
        return result

    def _continued(self, call: Call, begun: products.Product) -> Result:
        """Between the two products of attention."""
        if isinstance(begun, products.State) and call.node.name == "bmm":
            result, weighed = products.of_state(call, begun)
            self._weighed[weighed.output.latent] = weighed
            return result
        if isinstance(begun, Scores) and call.node.name == "bmm":
            if begun.normalised or np.any(begun.bias):
                return outputs.times_values(call, begun)
            return products.times_values(begun, products.values_of(call, begun))
        plain = not isinstance(begun, Scores) or not begun.normalised
        found = products.changed(call, begun) if plain else None
        if found is None:
            assert isinstance(begun, Scores)
            found = scores.changed(call, begun)
        return unfinished(call.node, found)

    def _over_weights(self, call: Call) -> Result | None:
        """Sums of values over the sums of their weights; None if it is something else."""
        factors = [value for value in call.arguments[:2] if isinstance(value, Moments)]
        if len(factors) != 2 or (
            call.node.name == "div" and factors[1].latent not in self._weights
        ):
            return None
        sums = next((self._weighed[x.latent] for x in factors if x.latent in self._weighed), None)
        weights = next(
            (self._weights[x.latent] for x in factors if x.latent in self._weights), None
        )
        if weights is None:
            return None
        both = weights, weights.turned
        weights = next((one for one in both if sums is not None and one.belong_to(sums)), None)
        if sums is None or weights is None:
            own = {value.latent for value in both[0].queries.moved_from()}
            if any(x.latent in own for x in factors):
                raise UnpredictedError("queries over sums of their own weights")
            return None
        x, z = sorted(factors, key=lambda value: value.latent in self._weights)
        size = (
            z.mean / weights.output.mean
            if call.node.name == "div"
            else z.mean * weights.output.mean
        )
        plain = np.allclose(x.second_moment, sums.output.second_moment)
        if not plain or not np.allclose(size, 1, atol=1e-3):
            return None
        result = sums.over(weights)
        found = result.output
        assert isinstance(found, Moments)
        output = found.with_layout(x.layout, {})
        after = Result(output, lambda gradient: Pulled([(found, gradient)]))
        return chained(result, after)
