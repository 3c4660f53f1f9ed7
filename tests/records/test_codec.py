"""Records survive being stored, and broken ones are refused by the field that broke."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.diagnosis.record import Checkup, LayerPrediction
from equipoise.files import write_text
from equipoise.probes.record import GradientGrowth, LayerConditioning
from equipoise.records import Estimate, Finding, from_plain, to_plain
from equipoise.records.codec import write_json


@dataclass(frozen=True)
class Everything:
    """One field of every kind."""

    number: float
    count: int
    text: str
    flag: bool
    choice: Literal["a", "b"]
    numbers: tuple[float, ...]
    nested: Estimate
    several: tuple[Estimate, ...]
    named: Mapping[str, float]
    maybe: Estimate | None
    pair: tuple[str, float]
    word: str | None = None


texts = st.text(st.characters(exclude_categories=["Cs"]))
floats = st.floats(allow_nan=False)
estimates = st.builds(Estimate, floats, floats, texts, st.sampled_from([None, True, False]))
everything = st.builds(
    Everything,
    number=floats,
    count=st.integers(-(2**60), 2**60),
    text=texts,
    flag=st.booleans(),
    choice=st.sampled_from(["a", "b"]),
    numbers=st.lists(floats).map(tuple),
    nested=estimates,
    several=st.lists(estimates, max_size=3).map(tuple),
    named=st.dictionaries(texts, floats, max_size=3),
    maybe=st.none() | estimates,
    pair=st.tuples(texts, floats),
    word=st.none() | texts,
)


def stored(record):
    """Through JSON text and back; a parser that knows no NaN must read it."""
    text = json.dumps(to_plain(record), allow_nan=False)
    return from_plain(type(record), json.loads(text, parse_constant=pytest.fail))


class TestRoundTrip:
    @given(everything)
    def test_every_kind_of_field(self, record):
        assert stored(record) == record

    @given(estimates)
    def test_numbers_keep_their_last_bit_and_their_type(self, estimate):
        back = stored(estimate)
        assert back.value.hex() == estimate.value.hex()
        assert isinstance(back.value, float)

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_non_finite_numbers(self, value):
        back = stored(Estimate(value, value, "m")).value
        assert back == value or (math.isnan(back) and math.isnan(value))

    def test_whole_numbers_become_floats_where_floats_are_meant(self):
        assert isinstance(
            from_plain(Estimate, {"value": 1, "error": 0, "method": ""}).value, float
        )

    def test_missing_fields_with_a_default_are_filled_in(self):
        finding = from_plain(Finding, {"severity": "note", "title": "t", "detail": "d"})
        assert finding == Finding("note", "t", "d", None)

    @pytest.mark.parametrize(
        "record", [LayerPrediction, Checkup, GradientGrowth, LayerConditioning]
    )
    def test_tuples_and_lists_are_one(self, record):
        with pytest.raises(ValueError, match="lacks the fields"):
            from_plain(record, {})


GOOD = {"value": 1.0, "error": 0.0, "method": "m"}
BROKEN = {
    "missing field": ({"value": 1.0}, r"Estimate lacks the fields \['error', 'method'\]"),
    "unknown field": ({**GOOD, "x": 1}, r"Estimate has unknown fields \['x'\]; known are"),
    "text for a number": ({**GOOD, "value": "1"}, r"Estimate.value must be a number, got '1'"),
    "null for a number": ({**GOOD, "value": None}, "Estimate.value must be a number, got None"),
    "number for text": ({**GOOD, "method": 3}, "Estimate.method must be a str, got 3"),
    "number for truth": ({**GOOD, "stable": 1}, "Estimate.stable must be a bool, got 1"),
    "a list": ([], r"Estimate must be an object, got \[\]"),
    "null": (None, "Estimate must be an object, got None"),
}


class TestRefusals:
    @pytest.mark.parametrize(("data", "message"), BROKEN.values(), ids=BROKEN)
    def test_the_message_names_the_place(self, data, message):
        with pytest.raises(ValueError, match=message):
            from_plain(Estimate, data)

    def test_places_are_paths(self):
        growth = {"layers": [{}], "rate": None, "weight_rate": None, "replicates": 1, "batches": 1}
        with pytest.raises(ValueError, match=r"GradientGrowth.layers\[0\] lacks the fields"):
            from_plain(GradientGrowth, growth)

    @pytest.mark.parametrize("severity", ["fatal", 3, None, ["note"]])
    def test_choices(self, severity):
        with pytest.raises(ValueError, match=r"Finding.severity must be one of \('critical', "):
            from_plain(Finding, {"severity": severity, "title": "t", "detail": "d"})

    @pytest.mark.parametrize("field", ["value", "error"])
    def test_truth_is_no_number(self, field):
        with pytest.raises(ValueError, match="must be a number"):
            from_plain(Estimate, {**GOOD, field: True})

    def test_integers_beyond_every_float(self):
        with pytest.raises(ValueError, match="number"):
            from_plain(Estimate, {**GOOD, "value": 10**400})


class TestWriting:
    def test_files_are_whole_or_the_old_ones(self, tmp_path, monkeypatch):
        path = tmp_path / "new" / "record.json"
        write_json(path, Estimate(1.0, 0.0, "π"))
        assert from_plain(Estimate, json.loads(path.read_text("utf-8"))).method == "π"

        class Unstorable:
            pass

        with pytest.raises(TypeError):
            write_json(path, Unstorable())
        with pytest.raises(UnicodeEncodeError):
            write_text(path, "half a pair: \ud800")
        assert from_plain(Estimate, json.loads(path.read_text("utf-8"))).method == "π"

    def test_nothing_else_is_left(self, tmp_path):
        write_text(tmp_path / "a.txt", "a")
        assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


@dataclass(frozen=True)
class Pair:
    both: tuple[str, float]


@pytest.mark.parametrize("both", [["a"], ["a", 1.0, 2.0], [1.0, "a"], []])
def test_a_tuple_of_another_form_is_refused(both):
    with pytest.raises(ValueError, match=r"Pair\.both"):
        from_plain(Pair, {"both": both})


@dataclass(frozen=True)
class Curve:
    values: tuple[float, ...]


def test_lists_of_numbers():
    """Finite ones are taken as they are; others are looked at one by one."""
    assert from_plain(Curve, {"values": [0.5, 1, "Infinity"]}) == Curve((0.5, 1.0, math.inf))
    assert all(type(x) is float for x in from_plain(Curve, {"values": [2, 0.5]}).values)
    for bad in (math.inf, math.nan, True, "x", None):
        with pytest.raises(ValueError, match=r"Curve\.values\[1\] must be a number"):
            from_plain(Curve, {"values": [0.5, bad]})


def test_a_record_is_no_plain_value():
    with pytest.raises(ValueError, match="Estimate must be an object"):
        from_plain(Estimate, Estimate(1.0, 0.0, "m"))


def test_numbers_of_numpy_are_stored():
    record = {"count": np.int64(3), "mean": np.float32(0.5), "flag": np.bool_(True)}
    plain = to_plain({**record, "bad": np.float32(np.nan)})
    assert plain == {"count": 3, "mean": 0.5, "flag": True, "bad": "NaN"}
    assert json.loads(json.dumps(plain)) == plain
