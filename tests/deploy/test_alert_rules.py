"""Every alert speaks of metrics that exist, and says how bad it is."""

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from loadmanager.telemetry.attaching import AttachMetrics
from loadmanager.telemetry.history import HistoryMetrics
from loadmanager.telemetry.metrics import Metrics

BY_PATTERN = re.compile(r'__name__=~"(?P<before>\w*)\((?P<middle>[\w|]+)\)(?P<after>\w*)"')
BY_NAME = re.compile(r"\b(?:loadmanager|pulsar)_\w+")
ENDINGS = ("", "_total", "_bucket", "_sum", "_count")


@pytest.fixture(scope="module")
def rules(project: Path) -> list[dict[str, Any]]:
    file = project / "deploy" / "prometheus" / "alerts.yml"
    groups = yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.fixture(scope="module")
def existing() -> set[str]:
    """Return the names of all series of a sidecar that keeps history, and of attach."""
    registry = CollectorRegistry()
    AttachMetrics(registry)
    Metrics(registry)
    HistoryMetrics(registry)
    return {f"{m.name}{end}" for (m, end) in product(registry.collect(), ENDINGS)}


def metrics_in(expression: str) -> set[str]:
    """Return the names of the metrics in an alert's expression."""
    spelled_out = {
        f"{found['before']}{one}{found['after']}"
        for found in BY_PATTERN.finditer(expression)
        for one in found["middle"].split("|")
    }
    return spelled_out | set(BY_NAME.findall(BY_PATTERN.sub("", expression)))


def test_metrics_are_found_by_name_and_by_pattern() -> None:
    expression = 'max({__name__=~"pulsar_lb_(cpu|memory)_usage"}) + loadmanager_leader > 1'
    assert metrics_in(expression) == {
        "pulsar_lb_cpu_usage",
        "pulsar_lb_memory_usage",
        "loadmanager_leader",
    }


def test_every_alert_watches_a_metric_that_exists(
    rules: list[dict[str, Any]], existing: set[str]
) -> None:
    watched = {rule["alert"]: metrics_in(rule["expr"]) for rule in rules}
    assert {alert: names - existing for alert, names in watched.items() if names - existing} == {}
    assert [alert for alert, names in watched.items() if not names] == ["LoadManagerSidecarDown"]


def test_every_alert_says_how_bad_it_is_and_what_it_means(rules: list[dict[str, Any]]) -> None:
    for rule in rules:
        assert rule["labels"]["severity"] in {"critical", "warning"}, rule["alert"]
        assert rule["annotations"]["summary"].endswith("."), rule["alert"]


def test_every_alert_has_an_outage_in_which_it_is_to_fire(
    rules: list[dict[str, Any]], project: Path
) -> None:
    file = project / "tests" / "docker" / "alerts_test.yml"
    cases = yaml.safe_load(file.read_text(encoding="utf-8"))["tests"]
    moments = [moment for case in cases for moment in case["alert_rule_test"]]
    fired = {moment["alertname"] for moment in moments if moment.get("exp_alerts")}
    assert {rule["alert"] for rule in rules} == fired
