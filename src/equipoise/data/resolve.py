"""Turn ``path/to/file.py:name`` or ``package.module:name`` into the object it names."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from equipoise.records.wording import said


def resolve(spec: str) -> object:
    """Import the file or module that a spec names and return the object in it.

    While loading, modules in the current directory, in its folder ``src`` and in the file's own
    folder can be imported. A file is run once, not as ``__main__``, and stays registered in
    ``sys.modules``, so that its dataclasses work and its objects can be pickled; a changed
    file is run anew. With relative imports it is run as a module of the package around it.

    Args:
        spec: ``path/to/file.py:name`` or ``package.module:name``; the name may have dots.

    Raises:
        ValueError: If the spec has another form, the file, module or name does not exist, or
            importing it raises; the original exception is chained.

    Examples:
        >>> resolve("collections:OrderedDict.fromkeys")
        <built-in method fromkeys of type object at ...>
        >>> resolve("math:tua")
        Traceback (most recent call last):
        ValueError: math has no 'tua', asked for by 'math:tua'. Did you mean 'tau'?
    """
    target, name = split_spec(spec)
    with importing(spec):
        found: object = _load_file(target, spec) if _is_file(target) else _load_module(target)
    parent = target
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(
                f"{parent} has no {part!r}, asked for by {spec!r}.{_suggest(part, found)}"
            )
        found, parent = getattr(found, part), f"{parent}:{part}"
    return found


def split_spec(spec: str) -> tuple[str, str]:
    """Split a spec into file or module, and name.

    Examples:
        >>> split_spec("nets/deep.py:build")
        ('nets/deep.py', 'build')
    """
    target, _, name = spec.rpartition(":")
    if not target or not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(
            f"Expected path/to/file.py:name or package.module:name, got {spec!r}. "
            "After the colon stands the name of an object in that file."
        )
    return target, name


@contextmanager
def importing(spec: str) -> Iterator[None]:
    """Make the current directory, its ``src`` and a spec's own folder importable in the block.

    Wrap calls of what :func:`resolve` returned as well, where these may import further
    modules. Afterwards these folders leave ``sys.path``; what the user's code added or removed
    stays, since it may import later.
    """
    target, _ = split_spec(spec)
    before = list(sys.path)
    folders = [str(Path.cwd())]
    if _is_file(target):
        # The file's folder comes first, as it does for `python file.py`.
        folders.insert(0, str(_path(target).parent))
    sys.path[:0] = folders
    source = Path.cwd() / "src"
    if source.is_dir():  # last: its modules must not hide installed ones of the same name
        folders.append(str(source))
        sys.path.append(folders[-1])
    importlib.invalidate_caches()
    try:
        yield
    finally:
        for folder in folders:
            _remove_entry(folder, before)


def _remove_entry(folder: str, before: Sequence[str]) -> None:
    """Remove the entry that is this very string, unless the user's code has removed it.

    Code that drops double entries may have kept ours in place of an equal one from before, which
    then has to stay.
    """
    for index, entry in enumerate(sys.path):
        if entry is folder:
            if sys.path.count(folder) > before.count(folder):
                del sys.path[index]
            return


def _is_file(target: str) -> bool:
    return target.endswith(".py") or "/" in target or "\\" in target


def _path(target: str) -> Path:
    try:
        return Path(target).expanduser().resolve()
    except RuntimeError as error:  # Python's class for a user without a home
        raise ValueError(f"{target!r} is in the home of a user that is not there.") from error


def _load_file(target: str, spec: str) -> ModuleType:
    path = _path(target)
    try:
        there = path.is_file()
    except OSError as error:  # such as a name that is too long for the file system
        raise ValueError(
            f"cannot look for the file {target[:60]!r}…: {error.strerror}."
        ) from error
    if not there:
        raise ValueError(
            f"There is no file {target!r}, asked for by {spec!r}; the current directory is "
            f"{Path.cwd()}."
        )
    state = path.stat()
    version = f"{path}|{state.st_mtime_ns}|{state.st_size}"
    digest = hashlib.sha256(version.encode(errors="surrogateescape")).hexdigest()[:12]
    name = f"_equipoise_user_{digest}_{path.stem}"
    for known, loaded in sys.modules.items():
        if known.rpartition(".")[2] == name:
            return loaded
    try:
        try:
            return _run(name, path, target)
        except ImportError as error:
            if "relative import" not in str(error):
                raise
            return _run(f"{_package_of(path)}.{name}", path, target)
    except (Exception, SystemExit) as error:
        raise _import_failed(target, error) from error


def _run(name: str, path: Path, target: str) -> ModuleType:
    """Run a file as a module of this name."""
    plan = importlib.util.spec_from_file_location(name, path)
    if plan is None or plan.loader is None:
        raise ImportError(f"{target!r} is not a Python file; its name must end with .py")
    module = importlib.util.module_from_spec(plan)
    sys.modules[name] = module
    try:
        plan.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _package_of(path: Path) -> str:
    """Import the package that a file belongs to, and return its name.

    Its outermost folder is the last one with an ``__init__.py``; without any, folders below the
    current directory are packages.
    """
    root = path.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    here = Path.cwd()
    if root == path.parent and path.is_relative_to(here):
        root = here
    name = ".".join(path.parent.relative_to(root).parts)
    if not name:
        raise ImportError(
            "a file with relative imports stands in the current directory; go to the one above"
        )
    before, folder = list(sys.path), str(root)
    sys.path.insert(0, folder)
    try:
        package = importlib.import_module(name)
    finally:
        _remove_entry(folder, before)
    if path.parent not in [Path(folder).resolve() for folder in getattr(package, "__path__", ())]:
        raise ImportError(f"the package {name!r} is another one: {package!r}")
    return name


def _load_module(target: str) -> ModuleType:
    try:
        return importlib.import_module(target)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{target}.".startswith(f"{error.name}."):
            raise ValueError(
                f"There is no module {error.name!r}; the current directory is {Path.cwd()}. "
                f"A file is named with its ending, as in {target.replace('.', '/')}.py:name."
            ) from error
        raise _import_failed(target, error) from error
    except (Exception, SystemExit) as error:
        raise _import_failed(target, error) from error


def _import_failed(target: str, error: BaseException) -> ValueError:
    remedy = "Make sure that `python` can import it without side effects"
    if isinstance(error, SystemExit):
        remedy = "Put what should run only as a script under `if __name__ == '__main__':`"
    return ValueError(f"Importing {target} raised {said(error)} {remedy}.")


def _suggest(name: str, owner: object) -> str:
    public = [known for known in dir(owner) if not known.startswith("_")]
    if close := difflib.get_close_matches(name, public, n=1):
        return f" Did you mean {close[0]!r}?"
    # Only a few: a script's namespace is mostly what it imported.
    return f" It has {', '.join(public[:12])}{', …' if len(public) > 12 else ''}."
