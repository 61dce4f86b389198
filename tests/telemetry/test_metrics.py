import ast
import inspect
import re
from itertools import pairwise

import pytest
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from loadmanager.core.ids import BrokerId
from loadmanager.core.load import BrokerUrls, LoadReport, ResourceUsage
from loadmanager.core.memory import RoundMemory
from loadmanager.core.ownership import Phase
from loadmanager.core.plan import Reason, Refusal
from loadmanager.core.planner import Plan
from loadmanager.leader.decisions import report_plan
from loadmanager.telemetry import metrics as declarations
from loadmanager.telemetry.metrics import LABEL_VALUES, Metrics

B1 = BrokerId("b1:8080")
LABELS = {
    *("broker", "change", "cluster", "kind", "leadership", "metric", "mode", "outcome", "phase"),
    "place",
    *("reason", "resource", "result", "session", "strategy", "version", "what"),
}


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Metrics:
    return Metrics(registry, "c1")


def exposed(registry: CollectorRegistry) -> dict[str, Metric]:
    text = generate_latest(registry).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def report(**usages: ResourceUsage | None) -> LoadReport:
    return LoadReport(
        broker=B1,
        urls=BrokerUrls(http_url="http://b1:8080"),
        sidecar_url="http://b1:7750",
        reported_at_ms=0,
        started_at_ms=0,
        **usages,  # type: ignore[arg-type] # the four resources
    )


def test_names_end_in_their_unit(registry: CollectorRegistry, metrics: Metrics) -> None:
    del metrics
    for name, family in exposed(registry).items():
        assert re.fullmatch(r"(pulsar|loadmanager)_[a-zA-Z_]+", name)
        if family.type == "histogram":
            assert name.endswith(("_seconds", "_bytes"))
        assert not re.search(r"_(s|ms|millis|mib|percent|count)$", name)
        assert len(family.documentation) > 20, name
        assert family.documentation.endswith("."), name


def test_creation_times_are_not_exposed(registry: CollectorRegistry, metrics: Metrics) -> None:
    metrics.rounds.labels("balanced").inc()
    metrics.round_duration_seconds.observe(1)
    assert "_created" not in generate_latest(registry).decode()


def test_every_label_is_of_a_closed_set_and_none_is_a_bundle_or_topic() -> None:
    # Read from the source: a series that was not set yet is in no exposition.
    strings = {
        node.value
        for node in ast.walk(ast.parse(inspect.getsource(declarations)))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert LABELS | set(LABEL_VALUES) <= strings
    assert not {"bundle", "topic", "namespace", "host", "path", "url"} & strings


def test_label_names_are_the_known_ones(registry: CollectorRegistry, metrics: Metrics) -> None:
    exercise(metrics)
    for name, family in exposed(registry).items():
        for sample in family.samples:
            assert set(sample.labels) - {"le"} <= LABELS, name


def test_label_values_are_known_at_first(registry: CollectorRegistry, metrics: Metrics) -> None:
    del metrics
    changes = exposed(registry)["loadmanager_ownership_changes"].samples
    assert {(s.labels["change"], s.value) for s in changes} == {
        ("acquired", 0.0),
        ("released", 0.0),
        ("lost", 0.0),
    }
    assert (
        registry.get_sample_value(
            "pulsar_lb_unload_bundle_total", {"cluster": "c1", "metric": "bundleUnloading"}
        )
        == 0
    )


def exercise(metrics: Metrics) -> None:
    metrics.show_usage(report(cpu=ResourceUsage(50, 200)))
    metrics.report_age_seconds.labels(B1).set(3)
    metrics.rounds.labels("balanced").inc()
    metrics.moves.labels("ThresholdShedder", "overloaded").inc()
    metrics.refusals.labels("ThresholdShedder", "within_margin").inc()
    metrics.assignments.labels("placed").inc()
    metrics.report_publishes.labels("changed").inc()
    metrics.malformed("report")
    metrics.picture_changed(brokers=3, bundles=20, namespaces=2)
    metrics.coordination_asked("get", "ok", 0.01)
    metrics.lookup.answered(0.001)


def test_usage_is_shown_in_percent(registry: CollectorRegistry, metrics: Metrics) -> None:
    metrics.show_usage(report(cpu=ResourceUsage(50, 200), memory=ResourceUsage(300, 200)))
    labels = {"cluster": "c1", "broker": B1, "metric": "loadBalancing"}
    assert registry.get_sample_value("pulsar_lb_cpu_usage", labels) == 25.0
    assert registry.get_sample_value("pulsar_lb_memory_usage", labels) == 150.0
    assert registry.get_sample_value("pulsar_lb_directMemory_usage", labels) is None


def test_an_unknown_resource_shows_no_value(registry: CollectorRegistry, metrics: Metrics) -> None:
    labels = {"cluster": "c1", "broker": B1, "metric": "loadBalancing"}
    metrics.show_usage(report(cpu=ResourceUsage(50, 200)))
    metrics.show_usage(report(cpu=ResourceUsage(50, 0)))
    assert registry.get_sample_value("pulsar_lb_cpu_usage", labels) is None
    unknown = {"resource": "cpu"}
    assert registry.get_sample_value("loadmanager_unknown_resource", unknown) == 1
    metrics.show_usage(report(cpu=ResourceUsage(50, 200)))
    assert registry.get_sample_value("loadmanager_unknown_resource", unknown) == 0


def test_a_departed_broker_leaves_no_series(registry: CollectorRegistry, metrics: Metrics) -> None:
    exercise(metrics)
    metrics.brokers_departed([B1, BrokerId("never:1")])
    assert str(B1) not in generate_latest(registry).decode()


def test_phases_leave_out_free_bundles(registry: CollectorRegistry, metrics: Metrics) -> None:
    way = [Phase.FREE, Phase.ACQUIRING, Phase.OWNED, Phase.RELEASING]
    for before, after in pairwise(way):
        metrics.phase_changed(before, after)
    metrics.phase_changed(Phase.FREE, Phase.OWNED)
    metrics.phase_changed(Phase.RELEASING, Phase.FREE)
    samples = exposed(registry)["loadmanager_ownership_bundles"].samples
    assert {s.labels["phase"]: s.value for s in samples if s.value} == {"owned": 1}


def test_session_states_are_counted(registry: CollectorRegistry, metrics: Metrics) -> None:
    for state in ("connected", "suspended", "connected", "lost"):
        metrics.session_changed(state)
    samples = exposed(registry)["loadmanager_session_state"].samples
    assert {s.labels["session"]: s.value for s in samples} == {
        "connected": 0,
        "suspended": 0,
        "lost": 1,
    }
    connected = {"session": "connected"}
    assert registry.get_sample_value("loadmanager_session_changes_total", connected) == 2


def test_lookups_are_counted_by_result(registry: CollectorRegistry, metrics: Metrics) -> None:
    metrics.lookup.answered(0.0001)
    metrics.lookup.answered(0.002)
    metrics.lookup.failed(60)
    metrics.lookup.pending(4)
    got = registry.get_sample_value
    assert got("loadmanager_lookups_total", {"result": "answered"}) == 2
    assert got("pulsar_broker_lookup_answers_total") == 2
    assert got("pulsar_broker_lookup_failures_total") == 1
    assert got("pulsar_broker_lookup_pending_requests") == 4
    assert got("loadmanager_lookup_duration_seconds_bucket", {"le": "0.0001"}) == 1
    assert got("loadmanager_lookup_duration_seconds_bucket", {"le": "5.0"}) == 2
    assert got("loadmanager_lookup_duration_seconds_bucket", {"le": "+Inf"}) == 3
    assert got("loadmanager_lookup_duration_seconds_count") == 3
    assert got("pulsar_broker_lookup_sum") == pytest.approx(60002.1)


def test_unloads_and_splits_add_up(registry: CollectorRegistry, metrics: Metrics) -> None:
    metrics.bundles_unloaded(bundles=3, brokers=1)
    metrics.bundles_unloaded(bundles=2, brokers=2)
    metrics.bundles_split(1)
    unloading = {"cluster": "c1", "metric": "bundleUnloading"}
    splitting = {"cluster": "c1", "metric": "bundlesSplit"}
    assert registry.get_sample_value("pulsar_lb_unload_bundle_total", unloading) == 5
    assert registry.get_sample_value("pulsar_lb_unload_broker_total", unloading) == 3
    assert registry.get_sample_value("pulsar_lb_bundles_split_total", splitting) == 1


def test_rounds_that_used_up_their_steps_are_counted(
    registry: CollectorRegistry, metrics: Metrics
) -> None:
    for subject, reason in (("", Reason.WORK_BUDGET), ("a:1", Reason.WORK_BUDGET)):
        refusals = (Refusal(subject, reason, "why"),)
        report_plan(metrics, "joint", Plan(moves=(), refusals=refusals, memory=RoundMemory()), 1)
    assert registry.get_sample_value("loadmanager_rounds_cut_short_total") == 1
