"""``equipoise probe`` and ``equipoise checkup --smoothness`` on users' own files."""

from __future__ import annotations

import json

import pytest

from equipoise.diagnosis.record import Probe
from equipoise.records import from_plain

FAST = ("--batch-size", 16, "--steps", 4, "--measurements", 2, "--seeds", 1)


def probe(equipoise, *rest):
    return equipoise("probe", "nets.py:build", *FAST, *rest)


class TestProbe:
    def test_tables_page_and_record(self, equipoise, folder):
        done = probe(equipoise, "--hessian")
        assert (done.code, done.err) == (0, "")
        for words in (
            "Along the gradient, at initialisation",
            "How far the gradient is reliable",
            "Internal covariate shift, at initialisation",
            "Curvature (eigenvalues of the Hessian)",
            "Gradients per layer",
            "Report: equipoise-probe/probe.html",
        ):
            assert words in done.out
        stored = json.loads((folder / "equipoise-probe" / "probe.json").read_text("utf-8"))
        found = from_plain(Probe, stored)
        assert (found.target, found.data, found.batch_size) == ("nets.py:build", "digits", 16)
        assert len(found.landscape.steps) == 8
        assert [layer.layer for layer in found.shift.layers] == ["1", "2", "4", "5", "7"]
        assert [arm.name for arm in found.training.arms] == ["unchanged", "without normalisers"]
        assert found.hessian.whole.parameters == found.parameters

    def test_json_stands_alone_on_standard_output(self, equipoise, folder):
        done = probe(equipoise, "--json", "--out", "here")
        assert done.code == 0
        assert done.json == json.loads((folder / "here" / "probe.json").read_text("utf-8"))
        assert done.json["hessian"] is None
        assert "Report: here/probe.html" in done.err


@pytest.mark.usefixtures("no_page")
class TestOptions:
    def test_a_given_rate(self, equipoise):
        done = probe(equipoise, "--rate", 0.03, "--json")
        assert (done.json["rate"], done.json["rate_origin"]) == (0.03, "given")
        assert done.json["landscape"]["steps"][-1] == pytest.approx(0.12)

    def test_without_training(self, equipoise):
        done = equipoise("probe", "nets.py:build", "--batch-size", 16, "--steps", 0, "--json")
        assert (done.json["rate_origin"], done.json["training"]) == ("reference", None)

    def test_data_and_loss_of_the_users(self, equipoise):
        done = probe(
            equipoise, "--data", "batches.py:loader", "--loss", "nets.py:absolute", "--json"
        )
        assert (done.json["batch_size"], done.json["data"]) == (8, "batches.py:loader")

    def test_the_default_network(self, equipoise):
        sizes = ("--arg", "depth=2", "--arg", "width=8")
        done = equipoise("probe", *sizes, *FAST, "--json")
        assert done.json["target"] == "batch-normalised ReLU network, 2 × 8"

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--rate", "-1"), "rate must be a finite number above 0; got -1.0"),
            (("--measurements", "1"), "measurements must be a whole number of at least 2; got 1"),
            (("--data", "digit"), "Did you mean 'digits'?"),
            (("--batch-size", "1"), "batch size 1 is too small"),
            (("--out", "nets.py"), "cannot write the report to 'nets.py'"),
        ],
    )
    def test_bad_input_is_one_line_and_exit_code_two(self, equipoise, folder, arguments, message):
        done = probe(equipoise, *arguments)
        assert done.code == 2
        assert done.err.startswith("equipoise probe: ")
        assert message in done.err
        assert done.err.count("\n") == 1
        assert not (folder / "equipoise-probe").exists()

    def test_an_interrupted_one_is_written_and_exits_with_130(
        self, equipoise, folder, monkeypatch
    ):
        def interrupt(*args, **keywords):
            raise KeyboardInterrupt

        monkeypatch.setattr("equipoise.probes.landscape", interrupt)
        done = equipoise("probe", "nets.py:build", "--batch-size", 16, "--steps", 0)
        assert done.code == 130
        stored = json.loads((folder / "equipoise-probe" / "probe.json").read_text("utf-8"))
        assert stored["interrupted"] is True
        assert stored["growth"] is not None


@pytest.mark.usefixtures("no_page")
class TestCheckup:
    def checkup(self, equipoise, *rest):
        fast = ("--seeds", 1, "--batches", 1, "--batch-size", 16)
        return equipoise("checkup", "nets.py:build", *fast, *rest)

    def test_only_the_initialisation_is_measured_within_a_budget(self, equipoise):
        assert self.checkup(equipoise, "--json").json["smoothness"] is None
        found = self.checkup(equipoise, "--json", "--budget", "60s").json["smoothness"]
        assert (found["steps"], found["seeds"]) == (0, 1)
        assert [arm["name"] for arm in found["arms"]] == ["unchanged", "without normalisers"]

    def test_trains_if_it_is_asked_to(self, equipoise):
        done = self.checkup(equipoise, "--smoothness", "--optimizer", "adam")
        assert done.code == 0
        assert done.err.startswith("A training step takes")
        assert "60 steps of Adam" in done.out
        assert "Without normalisers: learning rate" in done.out
