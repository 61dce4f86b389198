import json
import re
import secrets
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from time import monotonic
from typing import Any, Final

import click
from prometheus_client import CollectorRegistry

from loadmanager.adapters.history import open_history
from loadmanager.adapters.pulsar_admin.client import Cost
from loadmanager.attach import screen, tasks
from loadmanager.attach.discovery import PulsarCluster, addresses
from loadmanager.attach.doctor import examine
from loadmanager.attach.observation import Observation, document
from loadmanager.attach.recording import AttachHistory
from loadmanager.attach.sampled_loads import SampledLoads
from loadmanager.attach.strategy import Strategy
from loadmanager.attach.tasks import LastHour
from loadmanager.cli.attach_page import AttachOverviews, show_window
from loadmanager.cli.simulate_history import warnings_alone
from loadmanager.cli.text_tables import fitted, print_table, terminal_width
from loadmanager.config.history import HistorySettings
from loadmanager.core.bundle_task import BundleTask
from loadmanager.core.history.records import Origin
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.rates import Rates
from loadmanager.telemetry.metrics import AttachMetrics, HistoryMetrics

_CLOSE_S: Final = 30.0


def host_name() -> str:
    return re.sub(r"[^-.\w]", "_", socket.gethostname(), flags=re.ASCII) or "localhost"


@contextmanager
def recording(
    options: Mapping[str, Any], cluster: PulsarCluster, strategy: Strategy, epoch: int = 0
) -> Iterator[AttachHistory | None]:
    """Yield the history writer of a term, None if the options ask for none."""
    if options["history_dir"] is None:
        yield None
        return
    origin = Origin(cluster.name, BrokerId(f"attach-{host_name()}:0"), secrets.token_hex(8))
    settings = HistorySettings(dir=str(options["history_dir"]))
    with warnings_alone():
        sink = open_history(settings, origin, HistoryMetrics(CollectorRegistry()))
        sink.start()
        history = AttachHistory(
            sink=sink,
            strategy=strategy,
            loads=strategy.loads or SampledLoads(addresses(options["urls"][0])),
            interval_s=options["interval_s"],
            most_moves=options["most_moves"],
            balances=options["balance"],
            epoch=epoch,
            base_every_rounds=settings.base_every_rounds,
        )
        history.began()
        try:
            yield history
        finally:
            history.ended()
            sink.close(_CLOSE_S)


def print_window(seen: Observation, cost: Cost, *, as_json: bool, traffic: bool = False) -> None:
    if as_json:
        _print_json(_window(seen, cost, traffic=traffic))
    else:
        _print_screen(seen, cost, screen.summary(seen))


def _print_screen(seen: Observation, cost: Cost, summary: Iterable[str]) -> None:
    print_table(screen.title(seen), *screen.columns(seen))
    for line in summary:
        click.echo(fitted(line, terminal_width()))
    click.echo(f"read with {cost.requests} requests and {cost.answer_bytes / 1e6:.1f} MB so far")


def print_findings(seen: Observation, restore: str) -> bool:
    found = examine(seen, restore)
    # Not cut to the terminal: remedies are to be copied.
    for line in (screen.title(seen), *screen.findings(found)):
        click.echo(line)
    return any(one.level == "problem" for one in found)


@dataclass(slots=True)
class PrintedLog:
    """Prints windows and tasks; without ``verbose`` a move is one line, when it has ended."""

    cost: Cost
    as_json: bool
    verbose: bool = False
    _last_hour: LastHour = field(default_factory=LastHour)
    _moving: dict[BundleId, Rates] = field(default_factory=dict)

    def round(self, seen: Observation, held: str) -> None:
        self._moving = {
            one.bundle: Rates(one.msgs_per_s, 0.0, one.bytes_per_s, 0.0) for one in seen.proposals
        }
        if self.as_json:
            _print_json({"at": _now(), **_window(seen, self.cost), "held": held})
            return
        summary = screen.summary(seen, proposals=self.verbose)
        _print_screen(seen, self.cost, chain(summary, self._last_hour.summary(monotonic())))
        if held:
            self.event(f"nothing moves in this round: {held}")

    def task(self, task: BundleTask, why: str) -> None:
        traffic = self._moving.get(task.bundle)
        if task.state.ended:
            self._last_hour.add(monotonic(), task, traffic)
        if self.as_json:
            _print_json({"at": _now(), "task": tasks.document(task, why)})
        elif self.verbose:
            self.event(tasks.line(task, why, traffic))
        elif task.state.ended:
            columns = tasks.MOST_COLUMNS - len(_now(short=True)) - 2
            self.event(tasks.short_line(task, traffic, columns))

    def event(self, what: str) -> None:
        if self.as_json:
            _print_json({"at": _now(), "event": what})
        else:
            click.echo(f"{_now(short=True)}  {what}")


@dataclass(slots=True, kw_only=True)
class BalancerLog:
    """Reports the events of a balancer to all that follow them.

    They are printed, counted in metrics, shown on the page, and written to ``history`` if there
    is one; ``strategy`` learns what becomes of the moves that it chose.
    """

    printed: PrintedLog
    metrics: AttachMetrics
    overviews: AttachOverviews
    strategy: Strategy
    history: AttachHistory | None
    _trouble: str = ""

    def round(self, seen: Observation, held: str) -> None:
        self.overviews.round(seen, held)
        show_window(self.metrics, seen)
        if self.history is not None:
            self.history.round(seen, held)
        self.printed.round(seen, held)
        trouble = "" if self.history is None else self.history.sink.trouble
        if trouble and not self._trouble:
            self.event(f"history is not written: {trouble}")
        self._trouble = trouble

    def task(self, task: BundleTask, why: str) -> None:
        self.strategy.task(task)
        self.overviews.task(task)
        if task.state.ended:
            self.metrics.tasks.labels(task.state.value).inc()
        if task.pause is not None and task.pause_s is not None:
            self.metrics.move_pause.observe(task.pause_s)
        if self.history is not None:
            self.history.task(task)
        self.printed.task(task, why)

    def event(self, what: str) -> None:
        self.printed.event(what)


def _window(seen: Observation, cost: Cost, *, traffic: bool = False) -> dict[str, Any]:
    return document(seen, requests=cost.requests, answer_bytes=cost.answer_bytes, traffic=traffic)


def _print_json(content: dict[str, Any]) -> None:
    click.echo(json.dumps(content, allow_nan=False))


def _now(*, short: bool = False) -> str:
    at = datetime.now(tz=UTC).isoformat(timespec="seconds" if short else "milliseconds")
    return at.replace("+00:00", "Z") if short else at
