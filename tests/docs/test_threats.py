"""The pages of threats and of field reports name tests that are there."""

import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PAGE = PROJECT / "docs" / "threats.md"
REPORTS = PROJECT / "docs" / "field-reports.md"


@pytest.mark.parametrize("page", [PAGE, REPORTS], ids=lambda page: page.stem)
def test_every_test_that_is_named_is_there(page: Path) -> None:
    named = set(re.findall(r"`(tests/[^`]+)`", page.read_text(encoding="utf-8")))
    assert named
    assert [path for path in sorted(named) if not (PROJECT / path).is_file()] == []


def test_every_promise_names_a_test() -> None:
    promises = re.findall(
        r"^\| promised \| shown by \|\n\|---\|---\|\n((?:\|.*\n)+)",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    rows = [row for table in promises for row in table.splitlines()]
    assert rows
    assert [row for row in rows if "`tests/" not in row] == []


def test_every_field_report_is_handled_by_a_test_or_has_a_reason() -> None:
    rows = re.findall(r"^\| (?!report|---)(.+) \|$", REPORTS.read_text("utf-8"), re.MULTILINE)
    answers = [row.split(" | ")[2:] for row in rows]
    assert len(answers) > 30
    for here, *shown in answers:
        assert here.startswith(("Handled", "In part: ", "Not ")), here
        assert any(shown) or here.startswith("Not "), here


def test_every_actor_has_promises_and_what_is_not_promised() -> None:
    _, *actors, inputs = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for actor in actors:
        assert "| promised | shown by |" in actor, actor.splitlines()[0]
        assert "**Not promised.**" in actor, actor.splitlines()[0]
    _, _, *rows = re.findall(r"^\|.*$", inputs, re.MULTILINE)
    assert [row for row in rows if "`tests/" not in row or row.count(" | ") != 3] == []
