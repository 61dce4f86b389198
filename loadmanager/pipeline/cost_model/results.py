"""Output of the estimation: rows of tables, and text."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from loadmanager.core.scores import RESOURCES
from loadmanager.pipeline.cost_model.learning import Drift, FoundTerm, Learned, Term, Verdict
from loadmanager.pipeline.cost_model.rows import RATES

UNITS: Final = {
    "cpu": "% of a core",
    "memory": "MiB",
    "direct_memory": "MiB",
    "bandwidth_in": "kbit/s",
    "bandwidth_out": "kbit/s",
}


@dataclass(frozen=True, slots=True, order=True)
class Unit:
    """One broker in one class, with the number and the range of its minutes."""

    cluster: str
    broker_class: str
    broker: str
    minutes: int
    first_minute: int
    last_minute: int


@dataclass(frozen=True, slots=True)
class Units:
    """All units and classes in order, which defines their numbers."""

    every: tuple[Unit, ...]
    classes: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, found: Iterable[Unit]) -> "Units":
        every = tuple(sorted(found))
        classes = sorted({(one.cluster, one.broker_class) for one in every})
        return cls(every, tuple(classes))

    @property
    def class_of(self) -> list[int]:
        numbers = {one: number for number, one in enumerate(self.classes)}
        return [numbers[one.cluster, one.broker_class] for one in self.every]

    @property
    def largest_cluster(self) -> str:
        minutes: dict[str, int] = {}
        for one in self.every:
            minutes[one.cluster] = minutes.get(one.cluster, 0) + one.minutes
        return max(sorted(minutes), key=lambda name: minutes[name])

    @property
    def middle_minute(self) -> int:
        """The middle of the history: the median of the middles of units, weighted by minutes.

        A broker whose clock was once years ahead does not make one half of the history empty.
        """
        middles = sorted(
            ((one.first_minute + one.last_minute + 1) // 2, one.minutes) for one in self.every
        )
        half, so_far = sum(minutes for _, minutes in middles) / 2, 0
        for middle, minutes in middles:
            so_far += minutes
            if so_far >= half:
                return middle
        raise ValueError("no unit has a minute; expected one at least")


BLOCKS_MINUTES: Final = (1440, 360, 60, 10)
WANTED_BLOCKS: Final = 40


def block_minutes(units: Sequence[Unit]) -> int:
    """Return the length of blocks, within which errors may be correlated: a day if possible.

    It is the longest of `BLOCKS_MINUTES` of which the largest class has `WANTED_BLOCKS`, enough to
    estimate the covariance.
    """
    for length in BLOCKS_MINUTES:
        blocks: dict[tuple[str, str], int] = {}
        for one in units:
            spanned = one.last_minute // length - one.first_minute // length + 1
            of_class = one.cluster, one.broker_class
            there = min(spanned, int(np.ceil(one.minutes / max(1, length // 10))))
            blocks[of_class] = blocks.get(of_class, 0) + there
        if max(blocks.values()) >= WANTED_BLOCKS:
            return length
    return BLOCKS_MINUTES[-1]


"""The unit of each resource in texts and on pages."""

_PER: Final = {
    "msgs_in_per_s": (1e3, "1,000 messages/s in"),
    "msgs_out_per_s": (1e3, "1,000 messages/s out"),
    "bytes_in_per_s": (1e6, "1 MB/s in"),
    "bytes_out_per_s": (1e6, "1 MB/s out"),
    "topics": (1e3, "1,000 topics"),
    "connections": (1e3, "1,000 connections"),
}
"""The amount of each rate that texts refer to."""


def term_rows(units: Units, learned: Learned) -> Iterator[dict[str, Any]]:
    for (number, row), finding in learned.findings.items():
        for one in finding.terms:
            typical = float(learned.statistics.scale[number, RATES.index(one.rate)])
            yield {
                **_class(units, number),
                "resource": RESOURCES[row],
                "rate": one.rate,
                **_interval(one.term),
                "typical_usage": one.term.value * typical,
                "verdict": str(one.verdict),
                "partners": ",".join(one.partners),
                "drift": None if one.drift is None else float(one.drift.fraction),
                "drifted": one.drift is not None and bool(one.drift.sure),
            }


def quality_rows(units: Units, learned: Learned) -> Iterator[dict[str, Any]]:
    statistics, trial = learned.statistics, learned.trial
    for (number, row), finding in learned.findings.items():
        at = number, row
        yield {
            **_class(units, number),
            "resource": RESOURCES[row],
            "refused": finding.refused,
            "minutes": int(statistics.measured[at]),
            "full_minutes": int(statistics.full[at]),
            "blocks": finding.blocks,
            "moves": int(statistics.changes[number]),
            "held_out_minutes": int(trial.minutes[at]),
            "mape": _number(trial.error[at]),
            "baseline_mape": _number(trial.rule_error[at]),
            "coverage": _number(trial.within[at]),
            "held_out_moves": int(trial.changes[at]),
            "move_mape": _number(trial.change_error[at]),
            "baseline_move_mape": _number(trial.rule_change_error[at]),
            "condition": _number(finding.condition),
            "typical_error": finding.typical_error,
            "drift": None if finding.drift is None else float(finding.drift.fraction),
            "drifted": finding.drift is not None and bool(finding.drift.sure),
        }


def background_rows(units: Units, learned: Learned) -> Iterator[dict[str, Any]]:
    for (unit, row), term in learned.backgrounds.items():
        one = units.every[unit]
        yield {
            "cluster": one.cluster,
            "broker_class": one.broker_class,
            "broker": one.broker,
            "resource": RESOURCES[row],
            **_interval(term),
            "minutes": one.minutes,
        }


def summary(units: Units, learned: Learned) -> Iterator[str]:
    """Yield lines of text: the terms of each class, their quality, and what is missing."""
    for number, (cluster, name) in enumerate(units.classes):
        members = learned.statistics.units_of(number)
        minutes = int(learned.statistics.minutes[members].sum())
        text = f"class {name or '(none)'} of {cluster}: {len(members)} brokers"
        changes = learned.statistics.changes[number]
        yield f"{text}, {minutes:,} minutes, {changes:,} changes by moves"
        for row, resource in enumerate(RESOURCES):
            yield from _of_resource(number, row, resource, learned)


def _of_resource(number: int, row: int, resource: str, learned: Learned) -> Iterator[str]:
    finding = learned.findings[number, row]
    if finding.refused:
        yield f"  {resource}: no costs, {resource} {finding.refused}"
        return
    trial, at = learned.trial, (number, row)
    yield (
        f"  {resource}: held-out minutes {_percent(trial.error[at])} off (traffic shares "
        f"{_percent(trial.rule_error[at])}), {_percent(trial.within[at])} within their 90 %"
    )
    unit = UNITS[resource]
    for one in finding.terms:
        times, per = _PER[one.rate]
        if one.verdict is Verdict.KNOWN and one.term.low <= 0.0:
            continue  # known to be negligible
        value, low, high = (
            f"{amount * times:,.4g}" for amount in (one.term.value, one.term.low, one.term.high)
        )
        yield f"    {per:22} {value:>9} {unit} [{low} to {high}]{_remark(one)}"
    if finding.drift is not None and finding.drift.sure:
        yield f"    typical traffic costs {finding.drift.fraction:+.0%} in the last half"


def _remark(one: FoundTerm) -> str:
    remarks = {
        Verdict.KNOWN: "",
        Verdict.VAGUE: " vague",
        Verdict.ENTANGLED: f" not separable from {', '.join(one.partners)}",
        Verdict.UNVARIED: " never varied within a broker",
    }
    return remarks[one.verdict] + _drifted(one.drift)


def _drifted(drift: Drift | None) -> str:
    return f" {drift.fraction:+.0%} in the last half" if drift is not None and drift.sure else ""


def _percent(fraction: float) -> str:
    return "-" if np.isnan(fraction) else f"{fraction:.1%}"


def _class(units: Units, number: int) -> dict[str, str]:
    cluster, name = units.classes[number]
    return {"cluster": cluster, "broker_class": name}


def _interval(term: Term) -> dict[str, float]:
    return {"value": float(term.value), "low": float(term.low), "high": float(term.high)}


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
