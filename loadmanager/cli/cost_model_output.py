"""A cost model as tables: its terms, their quality, and which of them are used."""

import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from loadmanager.cli.options import ending, read_input
from loadmanager.cli.sidecar_client import SidecarClient
from loadmanager.cli.text_tables import print_table
from loadmanager.core.bounds import HOUR_MS
from loadmanager.core.cost.document import (
    RATES,
    ClassCosts,
    CostDocument,
    Quality,
    Term,
    costs_of,
    decode_costs,
)
from loadmanager.core.cost.trust import distrust
from loadmanager.core.errors import MalformedContent
from loadmanager.core.fields import Fields
from loadmanager.core.scores import RESOURCES

_UNITS: Final[Mapping[str, str]] = {
    "cpu": "% of a core",
    "memory": "MiB",
    "direct_memory": "MiB",
    "bandwidth_in": "kbit/s",
    "bandwidth_out": "kbit/s",
}
_MOST_BROKERS: Final = 20


def read_costs(file: Path) -> CostDocument:
    """Return the cost model of a file; a wrong one ends the command."""
    with ending(MalformedContent, OSError, code=2):
        return decode_costs(str(file), read_input(file))


def asked_costs(client: SidecarClient, path: str) -> CostDocument:
    """Return the cost model that a sidecar answers; a wrong one ends the command."""
    found = client.json(path)
    with ending(MalformedContent):
        return costs_of(Fields(f"{client.url}{path}", found if isinstance(found, dict) else {}))


def print_costs(document: CostDocument) -> None:
    """Print a document as tables."""
    age_h = max(time.time_ns() // 1_000_000 - document.made_at_ms, 0) / HOUR_MS
    click.echo(
        f"Costs of cluster {document.cluster}, made {_when(document.made_at_ms)} "
        f"({age_h:.1f} h ago) from {_when(document.since_ms)} to {_when(document.until_ms)}"
    )
    for name, costs in document.classes.items():
        title = f"Class {name or '(without a name)'}: {len(costs.brokers)} brokers, "
        title += f"{costs.minutes} minutes"
        columns = ("resource", "of", "cost>", "90 % from>", "to>", "unit", "of typical>")
        print_table(title, columns, list(_terms(costs)))
    columns = ("class", "resource", "error>", "shares'>", "in interval>", "minutes>", "decided by")
    print_table("How good they are", columns, list(_qualities(document)))
    brokers = sorted(document.backgrounds)
    print_table(
        "What brokers use without traffic",
        ("broker", *(f"{resource}>" for resource in RESOURCES)),
        [_background(broker, document.backgrounds[broker]) for broker in brokers[:_MOST_BROKERS]],
    )
    if len(brokers) > _MOST_BROKERS:
        click.echo(f"... and {len(brokers) - _MOST_BROKERS} more brokers (--json prints all)")


def _terms(costs: ClassCosts) -> Iterator[tuple[str, ...]]:
    for resource in RESOURCES:
        terms = costs.resources.get(resource, {})
        typical = {rate: terms[rate].value * costs.typical.get(rate, 0.0) for rate in terms}
        total = sum(typical.values())
        for rate in RATES:
            if rate not in terms:
                continue
            term = terms[rate]
            share = f"{typical[rate] / total:.0%}" if total > 0 else "-"
            figures = (f"{number:.4g}" for number in (term.value, term.low, term.high))
            yield resource, rate, *figures, f"{_UNITS[resource]} per {_unit(rate)}", share


def _unit(rate: str) -> str:
    return {"topics": "topic", "connections": "connection"}.get(
        rate, "message/s" if rate.startswith("msgs") else "byte/s"
    )


def _qualities(document: CostDocument) -> Iterator[tuple[str, ...]]:
    for name in document.classes:
        for resource in RESOURCES:
            if resource not in document.classes[name].resources:
                continue
            quality = document.quality.get(name, {}).get(resource)
            why_not = distrust(document, name, resource)
            decided = f"no: {why_not}" if why_not else "yes"
            yield name or "(without a name)", resource, *_figures(quality), decided


def _figures(quality: Quality | None) -> tuple[str, ...]:
    if quality is None:
        return "-", "-", "-", "0"
    baseline = "-" if quality.baseline_mape is None else f"{quality.baseline_mape:.1%}"
    minutes = str(quality.held_out_minutes)
    return f"{quality.mape:.1%}", baseline, f"{quality.coverage:.0%}", minutes


def _background(broker: str, terms: Mapping[str, Term]) -> tuple[str, ...]:
    return broker, *(
        f"{terms[resource].value:.4g}" if resource in terms else "-" for resource in RESOURCES
    )


def _when(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%MZ")
