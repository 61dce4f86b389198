"""What ``loadmanager attach`` prints: tables and sentences, or a JSON object a line."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from loadmanager.cli.text_tables import fitted, print_table, terminal_width

if TYPE_CHECKING:
    from loadmanager.adapters.pulsar_admin.client import Cost
    from loadmanager.attach.observation import Observation
    from loadmanager.core.bundle_task import BundleTask


def print_window(
    seen: "Observation", cost: "Cost", *, as_json: bool, traffic: bool = False
) -> None:
    """Print one observation of a cluster; the JSON can have each bundle's ``traffic``."""
    from loadmanager.attach import screen

    if as_json:
        _print_json(_window(seen, cost, traffic=traffic))
        return
    print_table(screen.title(seen), *screen.columns(seen))
    for line in screen.summary(seen):
        click.echo(fitted(line, terminal_width()))
    click.echo(f"read with {cost.requests} requests and {cost.answer_bytes / 1e6:.1f} MB so far")


def print_findings(seen: "Observation") -> bool:
    """Print the findings; return whether there is a problem."""
    from loadmanager.attach import screen
    from loadmanager.attach.doctor import examine

    found = examine(seen)
    for line in (screen.title(seen), *screen.findings(found)):
        click.echo(fitted(line, terminal_width()))
    return any(one.level == "problem" for one in found)


@dataclass(frozen=True, slots=True)
class DecisionLog:
    """Prints what a balancer sees, decides and does, as it happens."""

    cost: "Cost"
    as_json: bool

    def round(self, seen: "Observation", held: str) -> None:
        """Report one look at the cluster."""
        if self.as_json:
            _print_json({"at": _now(), **_window(seen, self.cost), "held": held})
            return
        print_window(seen, self.cost, as_json=False)
        if held:
            self.event(f"nothing moves in this round: {held}")

    def task(self, task: "BundleTask", why: str) -> None:
        """Report a task in a new state."""
        from loadmanager.attach import tasks

        if self.as_json:
            _print_json({"at": _now(), "task": tasks.document(task, why)})
        else:
            click.echo(f"{_now()}  {tasks.line(task, why)}")

    def event(self, what: str) -> None:
        """Report anything else."""
        if self.as_json:
            _print_json({"at": _now(), "event": what})
        else:
            click.echo(f"{_now()}  {what}")


def _window(seen: "Observation", cost: "Cost", *, traffic: bool = False) -> dict[str, Any]:
    from loadmanager.attach.observation import document

    return document(seen, requests=cost.requests, answer_bytes=cost.answer_bytes, traffic=traffic)


def _print_json(content: dict[str, Any]) -> None:
    click.echo(json.dumps(content, allow_nan=False))


def _now() -> str:
    return datetime.now(tz=UTC).isoformat(timespec="milliseconds")
