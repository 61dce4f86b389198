"""docs/pipeline.md says what is so: its commands, its programs, its messages."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from loadmanager.cli import main
from loadmanager.config import describe
from loadmanager.pipeline.contract import declared
from loadmanager.pipeline.jobs import JOBS

PROJECT = Path(__file__).parents[2]
TEXT = (PROJECT / "docs" / "pipeline.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^|\s|/)loadmanager( [^#\n]+)")


def blocks(language: str) -> list[str]:
    found = [match for match in BLOCK.finditer(TEXT) if match[2] == language]
    return [re.sub(rf"(?m)^{match[1]}", "", match[3]) for match in found]


def commands() -> Iterator[str]:
    for block in (*blocks("sh"), *blocks("")):
        text = block.replace("\\\n", " ")
        pipeline = re.search(r"^PIPELINE=(.+)$", text, re.MULTILINE)
        if pipeline:
            cron = text[pipeline.end() :].replace("  loadmanager  ", " ")
            text = cron.replace("$PIPELINE", pipeline[1])
        yield from COMMAND.findall(text)
    for block in blocks("python"):
        head = re.search(r'"/opt/loadmanager/bin/loadmanager ([^"]+)"', block)
        for rest in re.findall(r'PIPELINE \+ "([^"]+)"', block) if head else ():
            yield f"{head[1]} {rest}" if head else rest


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_every_command_has_the_options_it_is_shown_with(command: str) -> None:
    name, *words = shlex.split(command)
    found = main.commands[name]
    while isinstance(found, click.Group):
        found = found.commands[words.pop(0)]
    context = click.Context(found, **found.context_settings)
    given, rest, _ = found.make_parser(context).parse_args(words)
    assert rest == []
    if name == "pipeline":
        assert given["jobs"]
        assert set(given["jobs"]) <= JOBS.keys()


def test_commands_of_every_kind_were_looked_at() -> None:
    names = [shlex.split(command)[0] for command in commands()]
    assert {"demo", "pipeline"} <= set(names)
    assert names.count("pipeline") >= 12


def test_programs_are_python() -> None:
    assert [bool(ast.parse(block).body) for block in blocks("python")] == [True, True]


def test_every_job_has_its_row() -> None:
    assert re.findall(r"^\| `(\w+)` \|", TEXT.partition("## Jobs")[2], re.MULTILINE) == list(JOBS)


def test_settings_that_are_named_are_those_of_the_configuration() -> None:
    named = {f"{section}.{key}" for section, key in re.findall(r"`\[(\w+)\] (\w+)", TEXT)}
    assert {"history.dir", "history.seed"} <= named
    assert named <= {f"{one.section}.{one.key}" for one in describe()}


def test_messages_that_are_explained_are_those_that_are_told() -> None:
    folder = PROJECT / "loadmanager"
    files = [*(folder / "pipeline").rglob("*.py"), folder / "config/java.py"]
    source = " ".join(file.read_text(encoding="utf-8") for file in files)
    explained = TEXT.partition("## When it does not run")[2]
    said = [row.split(" | ")[0] for row in explained.splitlines() if row.startswith("| `")]
    told = [text for row in said for text in re.findall(r"`([^`]+)`", row)]
    pieces = [piece.strip(" (,") for text in told for piece in re.split(r"\.\.\.|[\d]+\w*", text)]
    assert [piece for piece in pieces if piece and piece not in source] == []


def test_every_table_and_column_says_what_it_is() -> None:
    tables = declared()
    assert {table.job for table in tables} <= JOBS.keys()
    assert [table.name for table in tables if not table.meaning.endswith(".")] == []
    fields = [(table.name, field) for table in tables for field in table.schema]
    assert [f"{name}.{one.name}" for name, one in fields if not one.metadata.get("meaning")] == []
