"""Count what the architecture page promises: lines, files, public names, families, copies.

``python tests/census.py [ROOT ...]`` prints a table with one column for each checkout, such
as this one beside an older one. ``tests/test_architecture.py`` asserts the promises.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

# How often each concept is defined: a pattern for the defining lines. One is right.
CONCEPTS = {
    "capture of random states": r"torch\.get_rng_state\(\)",
    "what a normaliser is": (
        r"isinstance\([^)]*(?:batchnorm\._(?:BatchNorm|NormBase)|nn\.GroupNorm|_NORMALISERS)"
        r"|type\(\w+\) in kind\.classes|\"norm\" in type\("
    ),
    "Progress": r"^(?:class Progress\b|Progress(?:: TypeAlias)? = )",
    "LossFunction": r"^LossFunction(?:: TypeAlias)? = ",
    "Cell": r"^(?:class Cell\b|Cell = )",
    "Setting": r"^(?:class Setting\b|Setting = )",
    "Clock": r"^class Clock\b",
    "counter of a stage's runs": r"^class (?:_Count|_Counted|StageCounter)\b",
}


def sources(root: Path) -> list[Path]:
    """The library's Python files."""
    return sorted((root / "src" / "equipoise").rglob("*.py"))


def all_sources(root: Path) -> list[Path]:
    """The library's and the papers' Python files."""
    return [*sources(root), *sorted((root / "papers" / "src").rglob("*.py"))]


def lines(paths: list[Path]) -> int:
    """Lines of text, blank ones and comments included."""
    return sum(len(path.read_text("utf-8").splitlines()) for path in paths)


def public_names(root: Path) -> dict[str, list[str]]:
    """What each public module of the library exports by ``__all__``; private ones do not count."""
    found = {}
    for path in sources(root):
        parts = path.relative_to(root / "src").with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        names = list(_exported(path))
        if names and not any(part.startswith("_") for part in module.split(".")):
            found[module] = names
    return found


def _exported(path: Path) -> Iterator[str]:
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            for element in getattr(node.value, "elts", ()):
                if isinstance(element, ast.Constant):
                    yield str(element.value)


def families(paths: list[Path]) -> dict[str, int]:
    """Three or more modules of one folder whose names start with the same word."""
    starts = Counter(
        f"{path.parent.name}/{words[0]}_*"
        for path in paths
        if path.stem != "__init__" and len(words := path.stem.lstrip("_").split("_")) > 1
    )
    return {family: count for family, count in starts.items() if count > 2}


def copies(root: Path) -> dict[str, int]:
    """How many files define each concept."""
    texts = [path.read_text("utf-8") for path in all_sources(root)]
    return {
        concept: sum(bool(re.search(pattern, text, re.MULTILINE)) for text in texts)
        for concept, pattern in CONCEPTS.items()
    }


def census(root: Path) -> dict[str, int]:
    """Everything that is counted, by name."""
    library, papers = sources(root), all_sources(root)[len(sources(root)) :]
    tests = [*(root / "tests").rglob("*.py"), *(root / "papers" / "tests").rglob("*.py")]
    return {
        "lines of the library": lines(library),
        "lines of the papers": lines(papers),
        "lines of both suites of tests": lines(tests),
        "files of the library": len(library),
        "files of the papers": len(papers),
        "public names of the library": sum(map(len, public_names(root).values())),
        "families of three or more file names": len(families(all_sources(root))),
        **{f"definitions: {concept}": count for concept, count in copies(root).items()},
    }


def main() -> None:
    """Print the census of each checkout side by side."""
    roots = [Path(name) for name in sys.argv[1:]] or [Path(__file__).parents[1]]
    columns = [census(root) for root in roots]
    for name in columns[0]:
        print(f"{name:<48}", *(f"{column[name]:>8,}" for column in columns))


if __name__ == "__main__":
    main()
