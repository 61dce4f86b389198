"""docs/pipeline-tables.md is what the jobs' own declarations say."""

from pathlib import Path

from loadmanager.pipeline.described import declared, described
from loadmanager.pipeline.jobs import JOBS

DOCUMENT = Path(__file__).parents[2] / "docs" / "pipeline-tables.md"


def test_the_document_has_every_table_as_it_is_declared() -> None:
    told = "run: loadmanager pipeline --tables > docs/pipeline-tables.md"
    assert DOCUMENT.read_text(encoding="utf-8") == described(), told


def test_every_table_and_column_says_what_it_is() -> None:
    tables = declared()
    assert {table.job for table in tables} <= JOBS.keys()
    assert [table.name for table in tables if not table.meaning.endswith(".")] == []
    fields = [(table.name, field) for table in tables for field in table.schema]
    assert [f"{name}.{one.name}" for name, one in fields if not one.metadata.get("meaning")] == []
