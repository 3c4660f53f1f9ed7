"""``equipoise checkup`` on users' own files."""

import json
import re

import pytest

pytestmark = pytest.mark.usefixtures("no_depth")
FAST = ("--seeds", 2, "--batches", 1, "--batch-size", 16, "--fix", "none")


def checkup(equipoise, target, *rest):
    return equipoise("checkup", target, *FAST, *rest)


class TestReports:
    def test_a_factory_in_a_file(self, equipoise, folder):
        done = checkup(equipoise, "nets.py:build")
        assert done.code == 0
        assert re.fullmatch(r"A training step takes .* Left out: .*--hessian.*\n", done.err)
        assert "nets.py:build" in done.out
        assert "Report: equipoise-report/report.html" in done.out
        assert "equipoise" in (folder / "equipoise-report" / "report.html").read_text("utf-8")
        stored = json.loads((folder / "equipoise-report" / "report.json").read_text("utf-8"))
        assert (stored["target"], stored["data"], stored["depth"]) == (
            "nets.py:build",
            "digits",
            2,
        )

    def test_json_stands_alone_on_standard_output(self, equipoise, folder):
        done = checkup(equipoise, "nets.py:build", "--json", "--out", "here")
        assert done.code == 0
        assert done.json == json.loads((folder / "here" / "report.json").read_text("utf-8"))
        assert "Report: here/report.html" in done.err


@pytest.mark.usefixtures("no_page")
class TestInputs:
    def test_arguments_reach_the_factory_with_their_types(self, equipoise):
        done = checkup(
            equipoise, "nets.py:build", "--arg", "depth=3", "--arg", "activation=tanh", "--json"
        )
        assert done.json["depth"] == 3
        assert "tanh" in {site["operation"] for site in done.json["sites"]}
        assert done.json["target"] == "nets.py:build depth=3 activation=tanh"

    def test_a_loader_keeps_its_batches_and_says_so(self, equipoise, folder):
        (folder / "small.py").write_text(
            "import torch\nbatches = [(torch.randn(8, 64), torch.arange(8))] * 2\n"
        )
        told = "batches of 8, as the loader makes them, not of 16.\n"
        done = checkup(equipoise, "nets.py:build", "--data", "small.py:batches", "--json")
        assert done.json["batch_size"] == 8
        assert told in done.err
        assert told not in checkup(equipoise, "nets.py:build", "--json").err

    def test_arguments_without_a_target_shape_the_default_network(self, equipoise):
        arguments = ("--arg", "depth=4", "--arg", "width=32", *FAST, "--json")
        done = equipoise("checkup", *arguments)
        assert done.json["target"] == "batch-normalised ReLU network, 4 × 32"
        assert done.json["depth"] == 4

    @pytest.mark.parametrize("target", ["nets.py:Net", "./nets.py:build", "nets:build"])
    def test_classes_paths_and_modules_are_targets(self, equipoise, target):
        assert checkup(equipoise, target, "--json").json["depth"] == 2

    def test_a_module_instance_keeps_its_weights(self, equipoise):
        report = checkup(equipoise, "nets.py:instance", "--json").json
        assert report["seeds"] == 1
        assert report["growth"] is not None

    def test_a_module_instance_takes_no_arguments(self, equipoise):
        done = checkup(equipoise, "nets.py:instance", "--arg", "depth=3")
        assert done.code == 2

    @pytest.mark.parametrize(
        ("data", "rows"),
        [("pairs", 16), ("dataset", 16), ("loader", 8), ("generator", 16), ("regression", 16)],
    )
    def test_data_of_the_users(self, equipoise, data, rows):
        report = checkup(equipoise, "nets.py:build", "--data", f"batches.py:{data}", "--json").json
        assert (report["batch_size"], report["data"]) == (rows, f"batches.py:{data}")

    def test_random_data(self, equipoise):
        done = checkup(equipoise, "nets.py:build", "--data", "random:1x8x8:10", "--json")
        assert done.json["data"] == "random:1x8x8:10"

    def test_a_loss_of_the_users(self, equipoise):
        assert checkup(equipoise, "nets.py:build", "--loss", "nets.py:absolute").code == 0

    def test_an_optimizer_of_the_users(self, equipoise, folder):
        (folder / "steps.py").write_text(
            "import torch\n"
            "def fast(model):\n    return torch.optim.SGD(model.parameters(), lr=1e4)\n"
        )
        done = checkup(equipoise, "nets.py:build", "--optimizer", "steps.py:fast", "--json")
        assert done.json["optimizer"]["outcome"] == "too large"

    @pytest.mark.parametrize("data", ["random:3x4x4:7", "random:20:3", "batches.py:dataset"])
    def test_the_default_network_fits_the_data(self, equipoise, data):
        sizes = ("--arg", "depth=4", "--arg", "width=32")
        assert equipoise("checkup", *sizes, "--data", data, *FAST).code == 0

    def test_what_a_factory_prints_does_not_spoil_json(self, equipoise):
        assert checkup(equipoise, "nets.py:chatty", "--json").json["depth"] == 2


BAD = {
    "no such file": (("missing.py:f",), "There is no file 'missing.py'"),
    "no such module": (("nowhere.nets:f",), "There is no module 'nowhere'"),
    "no such name": (("nets.py:bild",), "nets.py has no 'bild'"),
    "no name": (("nets.py",), "Expected path/to/file.py:name"),
    "factory raises": (("nets.py:raises",), "raised RuntimeError: no such checkpoint"),
    "unknown argument": (("nets.py:build", "--arg", "dept=3"), "Did you mean 'depth'? It takes "),
    "lacking argument": (
        ("torch.nn:Linear", "--arg", "in_features=3"),
        "give --arg out_features=VALUE, or point to a function without arguments",
    ),
    "malformed argument": (("nets.py:build", "--arg", "depth"), "--arg takes NAME=VALUE"),
    "no name of an argument": (("nets.py:build", "--arg", "=3"), "--arg takes NAME=VALUE"),
    "not a factory": (("nets.py:number",), "nets.py:number is an int, not a model factory"),
    "a trainer": (
        ("nets.py:trainer",),
        "Point to a torch.nn.Module, such as nets.py:trainer.model",
    ),
    "not a module": (("nets.py:not_a_module",), "returned list, not a torch.nn.Module"),
    "NaN": (("nets.py:returns_nan",), "the loss is nan on a batch of digits"),
    "wrong shape": (
        ("nets.py:build", "--data", "random:3x9x9:10"),
        "failed on a batch of random:3x9x9:10 with inputs of shape [16, 3, 9, 9]: mat1 and",
    ),
    "too many classes": (
        ("nets.py:build", "--data", "random:64:90"),
        "but the model returned only 10 logits",
    ),
    "batch of one": (("nets.py:build", "--batch-size", "1"), "batch size 1 is too small"),
    "unknown data": (("nets.py:build", "--data", "digit"), "Did you mean 'digits'?"),
    "unknown loss": (("nets.py:build", "--loss", "hinge"), "unknown loss 'hinge'"),
    "loss that is none": (("nets.py:build", "--loss", "nets.py:number"), "a loss is a function"),
    "unknown optimizer": (
        ("nets.py:build", "--optimizer", "adm"),
        "unknown optimizer 'adm'; known are sgd, adam, adamw, and file.py:name",
    ),
    "optimizer that is none": (
        ("nets.py:build", "--optimizer", "nets.py:number"),
        "an optimizer is given as a function of the model",
    ),
    "unknown device": (("nets.py:build", "--device", "abacus"), "no device 'abacus'"),
    "device that is not there": (("nets.py:build", "--device", "vulkan"), "Try cpu."),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
class TestBadInput:
    def test_is_one_line_and_exit_code_two(self, equipoise, folder, arguments, message):
        done = equipoise("checkup", *FAST, *arguments)
        assert done.code == 2
        assert done.err.startswith("equipoise checkup: ")
        assert message in done.err
        assert done.err.count("\n") == 1
        assert done.out == ""
        assert not (folder / "equipoise-report").exists()

    def test_is_a_traceback_with_debug(self, equipoise, arguments, message):
        with pytest.raises(ValueError) as error:  # noqa: PT011 - the message is checked above
            equipoise("checkup", *FAST, *arguments, "--debug")
        assert message in str(error.value)


def test_the_command_line_tells_how_to_see_where_a_model_failed(equipoise):
    done = checkup(equipoise, "nets.py:build", "--data", "random:3x9x9:10")
    end = (
        "64x16). A layer takes 64 features and is given 243: change it, or give data of the shape "
        "that the model takes, such as 'random:3x32x32:10'. "
        "(--debug shows where)\n"
    )
    assert done.err.endswith(end)


class TestOutput:
    def test_a_folder_that_cannot_be_written_is_refused_at_once(self, equipoise):
        done = checkup(equipoise, "nets.py:build", "--out", "nets.py")
        assert done.code == 2
        assert "nets.py" in done.err

    def test_an_interrupted_check_up_is_written_and_exits_with_130(
        self, equipoise, folder, monkeypatch
    ):
        def interrupt(*args, **keywords):
            raise KeyboardInterrupt

        monkeypatch.setattr("equipoise.probes.gradient_growth", interrupt)
        done = checkup(equipoise, "nets.py:build", "--json")
        assert done.code == 130
        assert done.json["interrupted"] is True
        assert len(done.json["predictions"]) == 2
        assert (folder / "equipoise-report" / "report.html").is_file()

    def test_an_interrupt_before_anything_was_measured_is_one_line(self, equipoise, monkeypatch):
        def interrupt(*args, **keywords):
            raise KeyboardInterrupt

        monkeypatch.setattr("equipoise.data.load", interrupt)
        done = checkup(equipoise, "nets.py:build")
        assert (done.code, done.err) == (130, "equipoise checkup: interrupted.\n")

    def test_exceptions_of_users_code_are_one_line_that_names_it(self, equipoise, monkeypatch):
        def fail(*args, **keywords):
            raise RuntimeError("out of memory")

        monkeypatch.setattr("equipoise.diagnosis.checkup.checkup", fail)
        done = checkup(equipoise, "nets.py:build")
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert "RuntimeError: out of memory" in done.err
        assert "test_checkup.py" in done.err
        assert " in fail" in done.err
        with pytest.raises(RuntimeError, match="out of memory"):
            checkup(equipoise, "nets.py:build", "--debug")

    @pytest.mark.parametrize("count", ["0", "999999999999", "many"])
    def test_a_number_of_seeds_that_makes_no_sense_is_a_usage_error(self, equipoise, count):
        done = checkup(equipoise, "nets.py:build", "--seeds", count)
        assert done.code == 2
        assert f"takes a whole number from 1 to 10,000, got '{count}'" in done.err


class TestFixing:
    def test_the_outcome_joins_the_report(self, equipoise, folder):
        done = checkup(equipoise, "nets.py:build", "--fix", "bnp", "--steps", 4)
        assert done.code == 0
        assert "What to change" in done.out
        stored = json.loads((folder / "equipoise-report" / "report.json").read_text("utf-8"))
        assert stored["fix"]["steps"] == 4
        assert stored["fix"]["arms"][0]["name"] == "as it is"
        assert {arm["name"] for arm in stored["fix"]["arms"]} >= {"BNP"}

    @pytest.mark.usefixtures("no_page")
    def test_without_it_nothing_is_trained(self, equipoise):
        assert checkup(equipoise, "nets.py:build", "--json").json["fix"] is None

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--fix", "--steps", 2), "steps must be a whole number of at least 4; got 2"),
            (("--fix", "magic"), "'bnp'"),
            (("--fix", "--budget", "soon"), "'soon' is no time; write 60s, 5m or 1h"),
            (
                ("--fix", "--budget", "0s"),
                "budget must be a number in [1, inf]; got 0.0. It is in seconds",
            ),
            (("--steps", 9), "--steps belongs to --fix"),
            (("--out", "here.html"), "'here.html' is the name of a file"),
        ],
    )
    def test_wrong_options_are_refused_before_any_work(self, equipoise, arguments, message):
        done = checkup(equipoise, "nets.py:build", *arguments)
        assert done.code == 2
        assert message in done.err


@pytest.mark.usefixtures("no_page")
class TestFailing:
    """--fail-on ends with an exit code where findings are as severe as that."""

    def test_where_a_finding_is_as_severe(self, equipoise):
        done = checkup(equipoise, "nets.py:build", "--fail-on", "note")
        assert done.code == 1
        assert "(--fail-on note)" in done.err
        assert "nets.py:build" in done.out  # the report comes first

    def test_not_without_it(self, equipoise):
        assert checkup(equipoise, "nets.py:build").code == 0

    def test_other_severities_are_unknown(self, equipoise):
        assert checkup(equipoise, "nets.py:build", "--fail-on", "good").code == 2
