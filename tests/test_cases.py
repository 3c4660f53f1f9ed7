"""Cases in one test are those of as many tests: all run, and each that fails is named."""

import pytest
import torch

from support.cases import each


@each("number", [1, 2, 3])
class Numbers:
    def test_small(self, number, limit=3):
        assert number < limit


@each(("name", "number"), [("a", 1), ("b", 2)], ids=["first", "second"])
@each("sign", [1, -1])
def signed(name, number, sign):
    assert sign * number != -2, name


def test_every_case_that_fails_is_named():
    with pytest.raises(BaseExceptionGroup, match="2 of 3 cases") as found:
        Numbers().test_small(limit=2)
    notes = [error.__notes__ for error in found.value.exceptions]
    assert notes == [["in the case 2"], ["in the case 3"]]
    with pytest.raises(AssertionError) as alone:
        signed()
    assert alone.value.__notes__ == ["in the case -1", "in the case second"]


def test_none_that_holds_fails():
    Numbers().test_small(limit=4)


@each("case", [pytest.fail, pytest.raises])
def test_what_pytest_says_is_a_failure_like_others(case):
    @each("number", [0, 1])
    def failing(number):
        if case is pytest.fail:
            pytest.fail("no")
        with pytest.raises(ValueError):  # noqa: PT011
            pass

    with pytest.raises(BaseExceptionGroup, match="2 of 2 cases"):
        failing()


def test_each_begins_with_the_random_state_of_a_test():
    expected = torch.get_rng_state()
    found = []
    each("number", [0, 1])(lambda number: found.append(torch.get_rng_state()) or torch.rand(1))()
    assert all(torch.equal(state, expected) for state in found)


@pytest.mark.parametrize("outer", [1, 2])
@each("inner", [1, 2])
def test_other_fixtures_reach_each_case(outer, inner, tmp_path):
    assert outer * inner < 5
    assert tmp_path.is_dir()
