"""The page of the architecture: files that are there, counts that are right, states as they are."""

import re
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


@pytest.mark.parametrize("title", ["Life of a sample", "Life of a move"])
def test_the_files_and_representations_of_a_way_are_counted(title: str) -> None:
    section = next(part for part in TEXT.split("\n## ") if part.startswith(title))
    steps = "\n".join(re.findall(r"^\d+\. .*(?:\n   .*)*", section, re.MULTILINE))
    forms = re.findall(r"\*\*(\w+)\*\*", steps)
    assert len(_files(steps)) == len(set(_files(steps)))
    assert f"{len(_files(steps))} files, {len(set(forms))} representations" in section


def test_each_transition_has_a_reason() -> None:
    assert set(reasons()) == set(TRANSITIONS)


def test_the_states_are_those_of_the_table() -> None:
    # Renew it with: python tests/support/task_diagram.py
    assert renewed(TEXT) == TEXT
