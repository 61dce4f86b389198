"""The page of the architecture: files that are there, counts that are right, states as they are."""

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from task_diagram import PAGE, reasons, renewed

from loadmanager.core.bundle_task import TRANSITIONS

PACKAGE = Path(__file__).parents[2] / "loadmanager"
TEXT = PAGE.read_text("utf-8")


def _files(text: str) -> list[str]:
    return re.findall(r"`((?:\w+/)*\w+\.py|(?:\w+/)+)`", text)


def test_every_file_that_is_named_is_there() -> None:
    named = _files(TEXT)
    assert len(named) > 40
    roots = {name: PACKAGE.parent if name.startswith("tests/") else PACKAGE for name in named}
    assert [name for name, root in roots.items() if not (root / name).exists()] == []


@pytest.mark.parametrize("title", ["Life of a sample", "Life of a move", "Life of a lookup"])
def test_the_files_and_representations_of_a_way_are_counted(title: str) -> None:
    section = next(part for part in TEXT.split("\n## ") if part.startswith(title))
    steps = "\n".join(re.findall(r"^\d+\. .*(?:\n   .*)*", section, re.MULTILINE))
    forms = re.findall(r"\*\*(\w+)\*\*", steps)
    assert len(_files(steps)) == len(set(_files(steps)))
    counted = f", {len(set(forms))} representations" if forms else ""
    assert f"These are {len(_files(steps))} files{counted}" in section


def test_each_transition_has_a_reason() -> None:
    assert set(reasons()) == set(TRANSITIONS)


def test_the_states_are_those_of_the_table() -> None:
    # Renew it with: python tests/support/task_diagram.py
    assert renewed(TEXT) == TEXT


def _imported(module: str, path: Path, modules: dict[str, Path]) -> Iterator[str]:
    """Yield the modules that one needs while it is imported."""
    for one in ast.parse(path.read_text("utf-8")).body:
        if isinstance(one, ast.ImportFrom):
            names = [f"{one.module}.{alias.name}" for alias in one.names]
            yield from (name for name in (one.module, *names) if name in modules and name != module)
        elif isinstance(one, ast.Import):
            yield from (alias.name for alias in one.names if alias.name in modules)


def test_no_module_needs_itself() -> None:
    """Otherwise it depends on which is imported first whether a command starts."""
    modules = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path
        for path in PACKAGE.rglob("*.py")
    }
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    circle = TopologicalSorter(
        {name: set(_imported(name, path, modules)) for name, path in modules.items()}
    )
    circle.prepare()
