"""The Grafana dashboards of deploy/grafana, and the rules of the Helm chart.

Renew both with: python tests/support/dashboards.py
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_WIDTH: Final = 24
_HEIGHT: Final = 8
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """Queries by their legend, in one unit; ``about`` says what to look for."""

    title: str
    unit: str
    about: str
    queries: Mapping[str, str]
    kind: str = "timeseries"

    def json(self, number: int, *, width: int, x: int, y: int) -> dict[str, Any]:
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.about,
            "datasource": _SOURCE,
            "gridPos": {"h": _HEIGHT, "w": width, "x": x, "y": y},
            "fieldConfig": {"defaults": {"unit": self.unit}, "overrides": []},
            "options": {},
            "targets": [
                {
                    "datasource": _SOURCE,
                    "refId": chr(ord("A") + place),
                    "expr": expression,
                    "legendFormat": legend,
                }
                for place, (legend, expression) in enumerate(self.queries.items())
            ],
        }


@dataclass(slots=True)
class Dashboard:
    """Rows of panels; each row takes the whole width.

    ``instance_of`` is a metric: then instances that have it are chosen, as ``$instance``.
    """

    name: str
    title: str
    instance_of: str = ""
    rows: list[tuple[Panel, ...]] = field(default_factory=list)

    def row(self, *panels: Panel) -> None:
        self.rows.append(panels)

    @property
    def queries(self) -> list[str]:
        """All queries, as they are at first: of every instance."""
        return [
            expression.replace("$instance", ".+")
            for row in self.rows
            for panel in row
            for expression in panel.queries.values()
        ]

    def json(self) -> dict[str, Any]:
        panels: list[dict[str, Any]] = []
        for y, row in enumerate(self.rows):
            width = _WIDTH // len(row)
            for x, panel in enumerate(row):
                number = len(panels) + 1
                panels.append(panel.json(number, width=width, x=x * width, y=y * _HEIGHT))
        others = {"type": "dashboards", "tags": ["loadmanager"], "title": "Load manager"}
        return {
            "uid": f"loadmanager-{self.name}",
            "title": self.title,
            "tags": ["loadmanager"],
            "schemaVersion": 39,
            "editable": True,
            "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"},
            "templating": {"list": list(self._choices())},
            "links": [{**others, "asDropdown": True}],
            "panels": panels,
        }

    def _choices(self) -> Iterator[dict[str, Any]]:
        yield {
            "name": "datasource",
            "label": "Prometheus",
            "type": "datasource",
            "query": "prometheus",
        }
        if self.instance_of:
            yield {
                "name": "instance",
                "label": "Instance",
                "type": "query",
                "datasource": _SOURCE,
                "query": f"label_values({self.instance_of}, instance)",
                "refresh": 2,
                "sort": 1,
                "includeAll": True,
                "allValue": ".+",
                "multi": True,
            }


DEPLOY: Final = Path(__file__).parents[2] / "deploy"

RARE: Final = {
    "loadmanager_attach_": "loadmanager attach",
    "loadmanager_moves_total": "a move",
    "loadmanager_refusals_total": "a broker that might have been unloaded",
    "loadmanager_tasks_ended_total": "a bundle task that ended",
    "loadmanager_assignments_total": "a bundle without an owner",
    "pulsar_lb_bandwidth": "a limit of the network",
}
"""Beginnings of metrics that the stack of docker-compose.yml may lack, and what gives them."""

GAP: Final = "cluster:loadmanager_optimality_gap:max"
ONE: Final = '{instance=~"$instance"}'


def rate(metric: str, by: str, window: str = "10m") -> str:
    return f"sum by ({by}) (rate({metric}[{window}]))"


def one_rate(metric: str) -> str:
    return f"rate({metric}{ONE}[5m])"


def slowest(metric: str, window: str = "5m") -> str:
    return f"histogram_quantile(0.99, sum by (le) (rate({metric}_bucket[{window}])))"


def one_slowest(metric: str) -> str:
    buckets = f"sum by (le, instance) (rate({metric}_bucket{ONE}[5m]))"
    return f"histogram_quantile(0.99, {buckets})"


def figure(title: str, unit: str, about: str, expression: str) -> Panel:
    return Panel(title, unit, about, {title: expression}, "stat")


def cluster() -> Dashboard:
    made = Dashboard("cluster", "Load manager: cluster")
    brokers = 'max(loadmanager_picture_entries{what="brokers"})'
    made.row(
        figure("Leaders", "none", "One is right.", "sum(loadmanager_leader)"),
        figure("Sidecars that answer", "none", "One a broker.", 'sum(up{job="loadmanager"})'),
        figure("Brokers", "none", "Those that are registered.", brokers),
        figure("Gap", "percentunit", "The fullest broker above the proven lower bound.", GAP),
    )
    fullest = {
        "fullest broker": "max(loadmanager_optimality_largest)",
        "lower bound": "max(loadmanager_optimality_bound)",
        "lower bound within policies": "max(loadmanager_optimality_bound_within_policies)",
    }
    usage = {"{{broker}}": "broker:pulsar_lb_usage:max"}
    made.row(
        Panel("Fullest broker", "percentunit", "CPU or network, and the least it can be.", fullest),
        Panel("Busiest resource of each broker", "percent", "Of the broker's limit.", usage),
    )
    lookups = {"{{result}}": "cluster:loadmanager_lookups:rate5m"}
    pending = {"waiting": "sum(loadmanager_lookups_pending)"}
    slow = {
        "lookup": "cluster:loadmanager_lookup_duration_seconds:p99_5m",
        "hand-over": "cluster:loadmanager_hand_over_duration_seconds:p99_15m",
    }
    made.row(
        Panel("Lookups", "reqps", "A failed one is a client that waits.", lookups),
        Panel("Lookups without an owner yet", "none", "Long: see who leads.", pending),
        Panel("Slowest of a hundred", "s", "Lookups, and hand-overs of a bundle.", slow),
    )
    under_way = {"bundles": "sum(loadmanager_moves_in_flight)"}
    oldest = {"age": "max(loadmanager_oldest_task_age_seconds)"}
    doubts = {"{{kind}}": "max by (kind) (loadmanager_disagreements)"}
    made.row(
        Panel("Bundles under way", "none", "Ordered, and not served yet.", under_way),
        Panel("Oldest bundle task", "s", "The alert fires above 300 s.", oldest),
        Panel("What does not agree", "none", "Orders, locks, reports, boundaries.", doubts),
    )
    ages = {"{{broker}}": "min by (broker) (loadmanager_report_age_seconds)"}
    sessions = {"{{session}}": "sum by (session) (loadmanager_session_state)"}
    absent = {"bundles": "max(loadmanager_bundles_awaiting_return)"}
    made.row(
        Panel("Age of load reports", "s", "Above 180 s a broker is left alone.", ages),
        Panel("Sessions with ZooKeeper", "none", "All are to be connected.", sessions),
        Panel("Bundles that wait for absent brokers", "none", "After an outage.", absent),
    )
    return made


def broker() -> Dashboard:
    made = Dashboard("broker", "Load manager: broker and sidecar", "loadmanager_broker_leased")
    states = {
        "{{instance}} leased": f"loadmanager_broker_leased{ONE}",
        "{{instance}} healthy": f"loadmanager_broker_healthy{ONE}",
        "{{instance}} orders refused": f"loadmanager_orders_refused{ONE}",
        "{{instance}} standing by": f"loadmanager_standing_by{ONE}",
    }
    usage = {
        "{{broker}} CPU": f"pulsar_lb_cpu_usage{ONE}",
        "{{broker}} memory": f"pulsar_lb_memory_usage{ONE}",
        "{{broker}} in": f"pulsar_lb_bandwidth_in_usage{ONE}",
        "{{broker}} out": f"pulsar_lb_bandwidth_out_usage{ONE}",
    }
    made.row(
        Panel("State", "none", "Leased 1, healthy 1, the others 0.", states),
        Panel("Use of resources", "percent", "Of the broker's limits.", usage),
    )
    phases = {"{{instance}} {{phase}}": f"loadmanager_ownership_bundles{ONE}"}
    locks = {"{{instance}} {{change}}": one_rate("loadmanager_ownership_changes_total")}
    leases = {"{{instance}} {{result}}": one_rate("loadmanager_lease_renewals_total")}
    made.row(
        Panel("Bundles by phase", "none", "Long in another one than owned: see the log.", phases),
        Panel("Ownership locks", "ops", "One is lost if its session ended.", locks),
        Panel("Leases", "ops", "If they fail, the broker stops serving.", leases),
    )
    lookups = {"{{instance}} {{result}}": one_rate("loadmanager_lookups_total")}
    operation = "loadmanager_coordination_operation_duration_seconds"
    slow = {
        "{{instance}} event loop": one_slowest("loadmanager_event_loop_lag_seconds"),
        "{{instance}} ZooKeeper": one_slowest(operation),
        "{{instance}} health": one_slowest("loadmanager_broker_probe_duration_seconds"),
    }
    refused = {"{{instance}} {{reason}}": one_rate("loadmanager_http_refusals_total")}
    made.row(
        Panel("Lookups", "reqps", "Of clients that ask this sidecar.", lookups),
        Panel("Slowest of a hundred", "s", "What a lease depends on.", slow),
        Panel("Requests turned away", "reqps", "By the limit that was reached.", refused),
    )
    reports = {"{{instance}} {{reason}}": one_rate("loadmanager_report_publishes_total")}
    size = {"{{instance}}": f"loadmanager_report_bytes{ONE}"}
    written = {"{{instance}} {{stream}}": one_rate("loadmanager_history_bytes_total")}
    lost = {"{{instance}} {{why}}": one_rate("loadmanager_history_dropped_total")}
    made.row(
        Panel("Load reports", "ops", "By what made them due.", reports),
        Panel("Size of the loads node", "bytes", "ZooKeeper takes 1 MiB at once.", size),
        Panel("History written", "Bps", "Needs [history].", written),
        Panel("History lost", "ops", "Records that were given up.", lost),
    )
    return made


def decisions() -> Dashboard:
    made = Dashboard("decisions", "Load manager: decisions")
    rounds = {"{{outcome}}": rate("loadmanager_rounds_total", "outcome")}
    length = {"round": slowest("loadmanager_round_duration_seconds", "15m")}
    modes = {"{{mode}}": "max by (mode) (loadmanager_balancing)"}
    made.row(
        Panel("Rounds", "ops", "By outcome.", rounds),
        Panel("Length of a round", "s", "The slowest of a hundred.", length),
        Panel("How far the leader goes by itself", "none", "1 for the mode.", modes),
    )
    by_reason = "{{strategy}}: {{reason}}"
    moves = {by_reason: rate("loadmanager_moves_total", "strategy, reason")}
    refusals = {by_reason: rate("loadmanager_refusals_total", "strategy, reason")}
    moved = {"bundles": "cluster:pulsar_lb_unload_bundle:increase1h"}
    made.row(
        Panel("Moves", "ops", "Why rounds moved bundles.", moves),
        Panel("Left alone", "ops", "Why rounds moved no more.", refusals),
        Panel("Moved within an hour", "none", "[planner] max_moves_per_hour is 480.", moved),
    )
    ended = {"{{kind}} {{state}}": rate("loadmanager_tasks_ended_total", "kind, state")}
    placed = {"{{result}}": rate("loadmanager_assignments_total", "result")}
    split = {"bundles": "sum(increase(pulsar_lb_bundles_split_total[1h]))"}
    made.row(
        Panel("Bundle tasks that ended", "ops", "By kind and final state.", ended),
        Panel("Bundles to be placed", "ops", "A refused one is out of service.", placed),
        Panel("Split within an hour", "none", "Bundles.", split),
    )
    kept_out = {
        "left out": "max(loadmanager_brokers_left_out)",
        "passed over": "max(loadmanager_brokers_passed_over)",
    }
    shadows = {"active": GAP, "{{strategy}}": "max by (strategy) (loadmanager_shadow_gap)"}
    made.row(
        Panel("Brokers that get nothing", "none", "See explain BROKER.", kept_out),
        Panel("Gap of other strategies", "percentunit", "Needs [shedding] shadows.", shadows),
    )
    return made


def pipeline() -> Dashboard:
    made = Dashboard(
        "pipeline", "Load manager: history and pipeline", "loadmanager_history_waiting"
    )
    flushed = f"time() - loadmanager_history_flushed_timestamp_seconds{ONE}"
    dropped = f"sum(increase(loadmanager_history_dropped_total{ONE}[1h]))"
    backlog = f"sum(loadmanager_history_backlog_bytes{ONE})"
    made.row(
        figure("Last flush", "s", "Of the sidecar that is most behind.", f"max({flushed})"),
        figure("Lost within an hour", "none", "Records; each is a gap in tables.", dropped),
        figure("Not on disk yet", "bytes", "It grows where a disk is too slow.", backlog),
    )
    lines = {"{{stream}}": f"sum by (stream) ({one_rate('loadmanager_history_lines_total')})"}
    size = {"{{stream}}": f"sum by (stream) ({one_rate('loadmanager_history_bytes_total')})"}
    finished = f"increase(loadmanager_history_files_total{ONE}[1h])"
    files = {
        "{{stream}} finished": f"sum by (stream) ({finished})",
        "uploaded": f"sum(increase(loadmanager_history_uploads_total{ONE}[1h]))",
        "deleted": f"sum(increase(loadmanager_history_deletions_total{ONE}[1h]))",
    }
    made.row(
        Panel("Lines written", "ops", "Reports of all sidecars; rounds of the leader.", lines),
        Panel("Bytes written", "Bps", "Compressed.", size),
        Panel("Files within an hour", "none", "The pipeline reads finished ones.", files),
    )
    behind = {"{{instance}}": flushed}
    waiting = {"{{instance}}": f"loadmanager_history_waiting{ONE}"}
    lost = {
        "{{instance}} {{why}}": one_rate("loadmanager_history_dropped_total"),
        "{{instance}} failed flushes": one_rate("loadmanager_history_errors_total"),
    }
    made.row(
        Panel("Since the last flush", "s", "The alert fires above 120 s.", behind),
        Panel("Records that wait", "none", "For the writer.", waiting),
        Panel("Records lost", "ops", "By reason, and flushes that failed.", lost),
    )
    regret = {"{{strategy}}": "max by (strategy) (loadmanager_shadow_regret)"}
    moves = {
        "active": "sum(increase(pulsar_lb_unload_bundle_total[1h]))",
        "{{strategy}}": "sum by (strategy) (increase(loadmanager_shadow_moves_total[1h]))",
    }
    seeds = {
        "{{result}}": "sum by (result) (increase(loadmanager_seeds_total[1h]))",
        "bundles": "max(loadmanager_seeded_bundles)",
    }
    made.row(
        Panel("Regret", "percentunit", "Above 0 another strategy would be closer.", regret),
        Panel("Moves within an hour", "none", "More of them may cost more than they gain.", moves),
        Panel("Seeds of new leaders", "none", "Others than used: see [history] seed.", seeds),
    )
    return made


def pulsar_attach() -> Dashboard:
    made = Dashboard("pulsar-attach", "Load manager: attach", "loadmanager_attach_balancing")
    shedding = "max(loadmanager_attach_pulsar_shedding)"
    missing = "max(loadmanager_attach_brokers_missing)"
    made.row(
        figure("Controllers", "none", "One makes moves.", "sum(loadmanager_attach_balancing)"),
        figure("Pulsar's shedding", "none", "0 while one makes moves, else 1.", shedding),
        figure("Brokers", "none", "Active ones.", "max(loadmanager_attach_brokers)"),
        figure("Brokers without a sample", "none", "They neither give nor take.", missing),
    )
    ratio = {
        "fullest broker": "max(loadmanager_attach_max_over_mean)",
        "lower bound": "max(loadmanager_attach_least_max_over_mean)",
    }
    held = {"{{instance}}": f"loadmanager_attach_held{ONE}"}
    ended = {"{{state}}": rate("loadmanager_attach_tasks_total", "state")}
    made.row(
        Panel("Fullest broker over the mean", "none", "And the least it can be.", ratio),
        Panel("Held", "none", "1 while paused, settling, or outside of --window.", held),
        Panel("Moves and splits that ended", "ops", "By how.", ended),
    )
    return made


def dashboards() -> tuple[Dashboard, ...]:
    return cluster(), broker(), decisions(), pipeline(), pulsar_attach()


def generated() -> dict[Path, str]:
    files = {
        DEPLOY / "grafana" / f"{one.name}.json": json.dumps(one.json(), indent=2) + "\n"
        for one in dashboards()
    }
    alerts = (DEPLOY / "prometheus" / "alerts.yml").read_text("utf-8")
    attach = alerts[alerts.index("  - name: loadmanager-attach\n") :]
    files[DEPLOY / "helm" / "loadmanager" / "files" / "rules.yml"] = f"groups:\n{attach}"
    return files


if __name__ == "__main__":
    for path, text in generated().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
