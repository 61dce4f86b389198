"""The dashboards are those declared, and ask for metrics that exist."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from dashboards import RARE, dashboards, generated
from metric_names import existing_series, metrics_in

# Of Prometheus itself.
OTHERS = {'sum(up{job="loadmanager"})'}


@pytest.fixture(scope="module")
def recorded(project: Path) -> list[dict[str, Any]]:
    file = project / "deploy" / "prometheus" / "recording.yml"
    groups = yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_the_files_are_what_is_declared(project: Path) -> None:
    # Renew them with: python tests/support/dashboards.py
    files = generated()
    folder = project / "deploy" / "grafana"
    assert set(folder.iterdir()) == {path for path in files if path.parent == folder}
    assert {path.name: path.read_text("utf-8") == text for path, text in files.items()} == (
        dict.fromkeys((path.name for path in files), True)
    )


def test_every_query_asks_for_metrics_that_exist(recorded: list[dict[str, Any]]) -> None:
    known = existing_series() | {rule["record"] for rule in recorded}
    queries = [query for one in dashboards() for query in one.queries]
    asked = {query: metrics_in(query) for query in queries}
    assert {query for query, names in asked.items() if names - known} == set()
    assert {query for query, names in asked.items() if not names} == OTHERS
    assert all(any(name.startswith(rare) for name in known) for rare in RARE)


def test_every_rule_records_what_a_dashboard_shows(recorded: list[dict[str, Any]]) -> None:
    known = existing_series()
    shown = {name for one in dashboards() for query in one.queries for name in metrics_in(query)}
    for rule in recorded:
        assert metrics_in(rule["expr"]) <= known, rule["record"]
        assert rule["record"] in shown


def test_prometheus_of_the_stack_reads_every_file_of_rules(project: Path) -> None:
    folder = project / "deploy" / "prometheus"
    config = yaml.safe_load((folder / "prometheus.yml").read_text(encoding="utf-8"))
    files = {path.name for path in folder.glob("*.yml")} - {"prometheus.yml"}
    assert set(config["rule_files"]) == files


def test_each_instance_is_chosen_where_queries_ask_for_it() -> None:
    for one in dashboards():
        asks = any("$instance" in str(row) for row in one.rows)
        assert asks == bool(one.instance_of)
