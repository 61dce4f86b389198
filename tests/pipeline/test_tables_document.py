"""What the jobs declare of their tables, from which docs/pipeline-tables.md is made."""

from loadmanager.pipeline.described import declared
from loadmanager.pipeline.jobs import JOBS


def test_every_table_and_column_says_what_it_is() -> None:
    tables = declared()
    assert {table.job for table in tables} <= JOBS.keys()
    assert [table.name for table in tables if not table.meaning.endswith(".")] == []
    fields = [(table.name, field) for table in tables for field in table.schema]
    assert [f"{name}.{one.name}" for name, one in fields if not one.metadata.get("meaning")] == []
