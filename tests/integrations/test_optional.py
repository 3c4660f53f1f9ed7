"""The extras are optional: imported late, named in errors. These tests need none."""

import importlib
import importlib.util
import inspect
import subprocess
import sys

import pytest

from equipoise import BNP, integrations
from equipoise.integrations.optional import base_class
from equipoise.integrations.options import BNPOptions, checked

PACKAGES = ("lightning", "lightning.pytorch", "pytorch_lightning", "transformers")


def test_importing_the_room_imports_no_package():
    code = f"import sys, equipoise.integrations; assert not {{*{PACKAGES}}} & {{*sys.modules}}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", integrations.__all__)
def test_its_modules_can_be_imported_with_and_without_their_packages(name):
    assert getattr(integrations, name).BNPCallback.__doc__
    assert name in dir(integrations)


def test_it_has_no_others():
    with pytest.raises(AttributeError, match="no attribute 'keras'"):
        _ = integrations.keras


def without_packages(name, monkeypatch):
    """A second copy of a module; None in `sys.modules` makes a package count as missing."""
    for package in PACKAGES:
        monkeypatch.setitem(sys.modules, package, None)
    spec = importlib.util.find_spec(f"equipoise.integrations.{name}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "package"), [("lightning", "lightning"), ("huggingface", "transformers")]
)
def test_without_its_package_a_callback_names_the_extra(name, package, monkeypatch):
    module = without_packages(name, monkeypatch)
    needs = rf"{name}\.BNPCallback needs {package}: pip install 'equipoise\[{name}\]'"
    with pytest.raises(ModuleNotFoundError, match=needs):
        module.BNPCallback(update_every=10)


class TestBaseClass:
    @pytest.fixture
    def twins(self, tmp_path, monkeypatch):
        """Two packages with a class of one name."""
        for name in ("first_twin", "second_twin"):
            (tmp_path / f"{name}.py").write_text("class Callback: pass")
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.syspath_prepend(tmp_path)
        return "not_installed.callbacks", "first_twin", "second_twin"

    def test_the_first_installed_module_wins(self, twins):
        assert base_class("Callback", *twins, extra="none").__module__ == "first_twin"

    def test_a_module_in_use_comes_first(self, twins, monkeypatch):
        monkeypatch.setitem(sys.modules, "second_twin", importlib.import_module("second_twin"))
        assert base_class("Callback", *twins, extra="none").__module__ == "second_twin"

    def test_a_package_without_its_requirements_says_so(self, tmp_path, monkeypatch):
        """It is installed, so the extra would not help."""
        (tmp_path / "broken_package.py").write_text("import its_own_requirement")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(ModuleNotFoundError, match="its_own_requirement"):
            base_class("Callback", "broken_package", extra="none")


class TestOptions:
    def test_are_those_of_bnp(self):
        """By name, type and order."""
        expected = {
            name: parameter.annotation
            for name, parameter in inspect.signature(BNP).parameters.items()
            if name != "model"
        }
        found = {name: hint.__forward_arg__ for name, hint in BNPOptions.__annotations__.items()}
        expected["process_group"] = found["process_group"]  # spelt with its package there
        assert list(found.items()) == list(expected.items())

    def test_are_passed_on_unchanged(self):
        assert checked({"rho": 0.5, "include": ["net.*"]}) == {"rho": 0.5, "include": ["net.*"]}
