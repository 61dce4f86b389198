from pathlib import Path
from typing import Any

import pytest
import yaml
from dashboards import RARE, dashboards, generated
from metric_names import existing_series, metrics_in


@pytest.fixture(scope="module")
def rules(project: Path) -> list[dict[str, Any]]:
    file = project / "deploy" / "prometheus" / "alerts.yml"
    groups = yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.fixture(scope="module")
def existing() -> set[str]:
    return existing_series()


def test_alerts_watch_metrics_that_exist(rules: list[dict[str, Any]], existing: set[str]) -> None:
    watched = {rule["alert"]: metrics_in(rule["expr"]) for rule in rules}
    assert {alert: names - existing for alert, names in watched.items() if names - existing} == {}
    assert [alert for alert, names in watched.items() if not names] == ["LoadManagerSidecarDown"]


def test_every_alert_says_how_bad_it_is_and_what_it_means(rules: list[dict[str, Any]]) -> None:
    for rule in rules:
        assert rule["labels"]["severity"] in {"critical", "warning"}, rule["alert"]
        assert rule["annotations"]["summary"].endswith("."), rule["alert"]


def test_every_alert_is_fired_by_an_outage(rules: list[dict[str, Any]], project: Path) -> None:
    file = project / "tests" / "docker" / "alerts_test.yml"
    cases = yaml.safe_load(file.read_text(encoding="utf-8"))["tests"]
    moments = [moment for case in cases for moment in case["alert_rule_test"]]
    fired = {moment["alertname"] for moment in moments if moment.get("exp_alerts")}
    assert {rule["alert"] for rule in rules} == fired


def told(label: str) -> str:
    name = f"$externalLabels.loadmanager_{label}"
    return f"{{{{ with {name} }}}}{{{{ . }}}}{{{{ else }}}}"


def test_every_alert_is_in_the_runbooks(rules: list[dict[str, Any]], project: Path) -> None:
    page = (project / "docs" / "runbooks.md").read_text(encoding="utf-8")
    entries = dict(
        part.split("\n", 1) for part in page.replace("\n## ", "\n### ").split("\n### ")[1:]
    )
    alerts = [rule["alert"] for rule in rules]
    assert {title for title in entries if title.startswith("LoadManager")} == set(alerts)
    index = page.partition("\n## ")[0]
    for rule in rules:
        alert = rule["alert"]
        links = rule["annotations"]
        assert links["runbook_url"] == (
            f"{told('runbooks_url')}docs/runbooks.md{{{{ end }}}}#{alert.lower()}"
        )
        # That of attach is for its own host alone.
        of_attach = "loadmanager_attach_" in rule["expr"]
        assert links["page_url"].startswith(told("attach_page_url")) is of_attach, alert
        assert ('label "instance" }}/{{ else }}' in links["page_url"]) is not of_attach, alert
        assert f"`{alert}`" in index
        bullets = [line for line in entries[alert].splitlines() if line.startswith("- ")]
        assert [line.split(":")[0] for line in bullets] == [
            "- **Means**",
            "- **Look at**",
            "- **Do**",
        ]


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
