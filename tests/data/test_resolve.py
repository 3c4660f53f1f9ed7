import pickle
import sys
from pathlib import Path

import pytest

from equipoise.data.resolve import importing, resolve


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a file below a fresh current directory; modules it brings are forgotten after."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


class TestFiles:
    def test_relative_and_absolute_paths(self, write):
        path = write("nets/deep.py", "def build():\n    return 42\n")
        assert resolve("nets/deep.py:build")() == 42
        assert resolve(f"{path}:build")() == 42

    def test_dotted_names(self, write):
        write("a.py", "class Config:\n    size = 3\n")
        assert resolve("a.py:Config.size") == 3

    def test_neighbours_and_the_current_directory_are_importable(self, write):
        write("nets/neighbour_of_deep.py", "ONE = 1\n")
        write("root_of_project.py", "TWO = 2\n")
        text = "from neighbour_of_deep import ONE\nfrom root_of_project import TWO\n"
        write("nets/deep.py", f"{text}SUM = ONE + TWO\n")
        assert resolve("nets/deep.py:SUM") == 3

    @pytest.mark.parametrize("marked", [True, False], ids=["package", "folder"])
    def test_relative_imports_are_those_of_the_package_around_it(self, write, marked, monkeypatch):
        write("project/nets_around_it/blocks.py", "SIZE = 3\n")
        file = write("project/nets_around_it/deep/a.py", "from ..blocks import SIZE\nRUNS = []\n")
        if marked:
            write("project/nets_around_it/__init__.py", "")
            write("project/nets_around_it/deep/__init__.py", "")
            monkeypatch.chdir(file.parent)
        else:
            monkeypatch.chdir(file.parents[2])
        before = list(sys.path)
        assert resolve(f"{file}:SIZE") == 3
        assert resolve(f"{file}:RUNS") is resolve(f"{file}:RUNS")
        assert sys.path == before

    def test_relative_imports_without_a_package_say_so(self, write):
        write("a.py", "from .b import one\n")
        write("b.py", "one = 1\n")
        with pytest.raises(ValueError, match="relative imports stands in the current directory"):
            resolve("a.py:one")

    def test_another_package_of_that_name_is_not_taken_for_it(self, write):
        write("json/blocks.py", "SIZE = 3\n")
        write("json/a.py", "from .decoder import JSONDecoder\n")
        with pytest.raises(ValueError, match="the package 'json' is another one"):
            resolve("json/a.py:JSONDecoder")

    def test_one_file_runs_once(self, write):
        write("model.py", "first = object()\nsecond = first\n")
        assert resolve("model.py:first") is resolve("model.py:second")

    def test_a_changed_file_runs_again(self, write):
        write("model.py", "x = 1\n")
        assert resolve("model.py:x") == 1
        write("model.py", "x = 'changed'\n")
        assert resolve("model.py:x") == "changed"

    def test_files_of_one_name_are_not_confused(self, write):
        write("a/model.py", "x = 1\n")
        write("b/model.py", "x = 2\n")
        assert (resolve("a/model.py:x"), resolve("b/model.py:x")) == (1, 2)

    def test_dataclasses_work_and_pickle(self, write):
        write(
            "point.py",
            "from __future__ import annotations\n"
            "from dataclasses import dataclass, KW_ONLY\n"
            "@dataclass\nclass Point:\n    _: KW_ONLY\n    x: int = 1\n",
        )
        point = resolve("point.py:Point")(x=5)
        assert pickle.loads(pickle.dumps(point)) == point

    def test_scripts_are_not_run_as_main(self, write):
        write("train.py", "x = __name__\nif __name__ == '__main__':\n    raise RuntimeError\n")
        assert resolve("train.py:x") != "__main__"


class TestModules:
    def test_installed(self):
        assert resolve("os.path:join") is __import__("os").path.join

    def test_in_the_current_directory(self, write):
        write("projectpackage/__init__.py", "")
        write("projectpackage/nets.py", "def build():\n    return 1\n")
        assert resolve("projectpackage.nets:build")() == 1

    def test_in_its_folder_src(self, write):
        write("src/sourcepackage/__init__.py", "")
        write("src/sourcepackage/nets.py", "x = 1\n")
        assert resolve("sourcepackage.nets:x") == 1

    def test_that_folder_hides_nothing(self, write):
        write("src/colorsys.py", "x = 1\n")
        sys.modules.pop("colorsys", None)
        assert callable(resolve("colorsys:rgb_to_hsv"))


class TestSearchPath:
    """Our folders leave ``sys.path`` again; what the user's file did to it stays."""

    @pytest.fixture
    def project(self, write):
        """A project whose entry file makes a folder of sources importable, as scripts do.

        train/entry.py extends the path by lib/ and imports lib/late_part.py when called.
        """
        write(
            "train/entry.py",
            "import sys\n"
            "from pathlib import Path\n"
            "sys.path.append(str(Path(__file__).resolve().parent.parent / 'lib'))\n"
            "def build():\n"
            "    import late_part, late_neighbour\n"
            "    return late_part.VALUE, late_neighbour.VALUE\n",
        )
        write("train/late_neighbour.py", "VALUE = 'neighbour'\n")
        return write("lib/late_part.py", "VALUE = 'source'\n").parent

    def forget_late_modules(self):
        for name in ("late_part", "late_neighbour"):
            sys.modules.pop(name, None)

    def test_what_a_file_adds_is_there_when_its_factory_imports(self, project):
        for _ in range(2):  # the file runs once, its factory imports twice
            build = resolve("train/entry.py:build")
            for _ in range(2):
                self.forget_late_modules()
                with importing("train/entry.py:build"):
                    assert build() == ("source", "neighbour")
        assert sys.path.count(str(project)) == 1

    def test_a_path_put_back_as_it_was_breaks_the_factory(self, project):
        """Restoring a copy from before forgets what the file added."""
        before = list(sys.path)
        build = resolve("train/entry.py:build")
        sys.path[:] = before
        with (
            importing("train/entry.py:build"),
            pytest.raises(ModuleNotFoundError, match="late_part"),
        ):
            build()

    def test_two_files_after_one_another(self, project, write):
        write("libs/late_other.py", "VALUE = 'other'\n")
        write(
            "second.py",
            "import sys\nsys.path.insert(0, 'libs')\n"
            "def build():\n    import late_other\n    return late_other.VALUE\n",
        )
        before = list(sys.path)
        first, second = resolve("train/entry.py:build"), resolve("second.py:build")
        with importing("second.py:build"):
            assert second() == "other"
        with importing("train/entry.py:build"):
            assert first() == ("source", "neighbour")
        assert sys.path == ["libs", *before, str(project)]

    def test_blocks_may_be_nested(self, project, write):
        write("second.py", "x = 1\n")
        before = list(sys.path)
        with importing("train/entry.py:build"):
            inside = list(sys.path)
            build = resolve("train/entry.py:build")
            assert resolve("second.py:x") == 1
            assert sys.path == [*inside, str(project)]
            assert build() == ("source", "neighbour")
        assert sys.path == [*before, str(project)]

    @pytest.mark.parametrize("fails", [False, True])
    def test_our_folders_leave_also_after_an_error(self, write, fails):
        write("model.py", "x = 1 / 0\n" if fails else "x = 1\n")
        before = list(sys.path)
        if fails:
            with pytest.raises(ValueError, match="ZeroDivisionError"):
                resolve("model.py:x")
        else:
            resolve("model.py:x")
        assert sys.path == before

    @pytest.mark.parametrize(
        ("code", "change"),
        [
            ("sys.path.remove('/removed')", lambda before: before[:-1]),
            ("sys.path.pop(0)", lambda before: before),  # a script's own folder, here ours
            ("sys.path[:] = ['/only']", lambda _: ["/only"]),
            ("sys.path = ['/only']", lambda _: ["/only"]),
            (
                "sys.path.pop(0); sys.path.append(str(Path(__file__).resolve().parent))",
                lambda before: [*before, str(Path.cwd() / "nets")],
            ),
        ],
    )
    def test_what_a_file_removes_stays_removed(self, write, code, change):
        sys.path.append("/removed")
        write("nets/deep.py", f"import sys\nfrom pathlib import Path\n{code}\nx = 1\n")
        before = list(sys.path)
        resolve("nets/deep.py:x")
        assert sys.path == change(before)

    def test_a_folder_that_was_there_before_is_not_lost_to_a_file_that_drops_doubles(self, write):
        write("model.py", "import sys\nsys.path = list(dict.fromkeys(sys.path))\nx = 1\n")
        sys.path.append(str(Path.cwd()))
        before = set(sys.path)
        resolve("model.py:x")
        assert sorted(sys.path) == sorted(before)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("model.py", r"Expected path/to/file.py:name .* got 'model.py'"),
        (":name", r"Expected path/to/file.py:name"),
        ("model.py:", r"Expected path/to/file.py:name"),
        ("model.py:not a name", r"Expected path/to/file.py:name"),
        ("missing.py:x", r"no file 'missing.py', asked for by 'missing.py:x'; the current dir"),
        ("nets/missing:x", r"no file 'nets/missing'"),
        ("no_such_module:x", r"no module 'no_such_module'.*no_such_module.py:name"),
        ("os.no_such_part:x", r"no module 'os.no_such_part'"),
        ("model.py:bulid", r"model.py has no 'bulid', .*Did you mean 'build'\?"),
        ("model.py:Net.zzz", r"model.py:Net has no 'zzz'"),
        ("model.py:qqqqqq", r"It has Net, build\."),
        ("raising.py:x", r"Importing raising.py raised KeyError: 'oops'"),
        ("wrong_syntax.py:x", r"Importing wrong_syntax.py raised SyntaxError"),
        (
            "needs.py:x",
            r"Importing needs.py raised ModuleNotFoundError: No module named 'zzz_a'",
        ),
        ("needs:x", r"Importing needs raised ModuleNotFoundError: No module named 'zzz_a'"),
        ("exits.py:x", r"raised SystemExit: 2. Put .* under `if __name__ == '__main__':`"),
        ("notes/readme:x", r"not a Python file"),
    ],
)
def test_errors_name_what_was_given(write, spec, message):
    write("model.py", "class Net:\n    pass\n\ndef build():\n    pass\n")
    write("raising.py", "raise KeyError('oops')\n")
    write("wrong_syntax.py", "def (:\n")
    write("needs.py", "import zzz_a\n")
    write("exits.py", "raise SystemExit(2)\n")
    write("notes/readme", "text\n")
    with pytest.raises(ValueError, match=message):
        resolve(spec)


def test_the_original_exception_is_chained(write):
    write("raising.py", "raise KeyError('oops')\n")
    with pytest.raises(ValueError, match="raised KeyError") as caught:
        resolve("raising.py:x")
    assert isinstance(caught.value.__cause__, KeyError)
    assert not any(name.endswith("_raising") for name in sys.modules)


def test_an_interrupt_is_not_swallowed(write):
    write("stopped.py", "raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        resolve("stopped.py:x")
    assert not any(name.endswith("_stopped") for name in sys.modules)


def test_home_is_expanded(write, monkeypatch):
    path = write("model.py", "x = 3\n")
    monkeypatch.setenv("HOME", str(path.parent))
    monkeypatch.chdir(Path("/"))
    assert resolve("~/model.py:x") == 3
