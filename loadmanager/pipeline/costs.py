"""The job ``costs``: costs of messages, bytes, topics and connections by class of brokers.

`docs/costs.md` describes what is estimated and how.

    usage of a broker = its background + sum over rates (cost of its class times the rate)

A row is the mean of some minutes of a broker, so many that the driver holds at most `MOST_ROWS` of
any history. Only what varies within a broker counts: busier brokers may have busier hosts. Rows are
weighted robustly; then the variation between days, within days and within hours each counts by how
much whole days of brokers disagree in it, from which the intervals come as well.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.core.bounds import MINUTE_MS
from loadmanager.core.rates import BYTES_IN, BYTES_OUT, MSGS_IN, MSGS_OUT
from loadmanager.core.scores import (
    BANDWIDTH_IN,
    BANDWIDTH_OUT,
    CPU,
    DIRECT_MEMORY,
    MEMORY,
    RESOURCES,
    FloatArray,
)
from loadmanager.pipeline.confidence import student_95
from loadmanager.pipeline.contract import Table, columns
from loadmanager.pipeline.cost_fits import PARTS, Fit, Ints, fitted, group_means, interval, numbered
from loadmanager.pipeline.expressions import between, weighted_mean
from loadmanager.pipeline.failures import PipelineError
from loadmanager.pipeline.jobs import Work

RATES: Final = (
    "msgs_in_per_s",
    "msgs_out_per_s",
    "bytes_in_per_s",
    "bytes_out_per_s",
    "topics",
    "connections",
)
"""The rates that determine a bundle's cost, in the order of the columns of all arrays."""

UNITS: Final = {
    "cpu": "% of a core",
    "memory": "MiB",
    "direct_memory": "MiB",
    "bandwidth_in": "kbit/s",
    "bandwidth_out": "kbit/s",
}
"""The unit of each resource in texts and on pages."""

PER: Final = {
    "msgs_in_per_s": (1e3, "1,000 messages/s in"),
    "msgs_out_per_s": (1e3, "1,000 messages/s out"),
    "bytes_in_per_s": (1e6, "1 MB/s in"),
    "bytes_out_per_s": (1e6, "1 MB/s out"),
    "topics": (1e3, "1,000 topics"),
    "connections": (1e3, "1,000 connections"),
}
"""The amount of each rate that texts refer to."""

_CLASS: Final = """
    cluster string Name of the cluster.
    broker_class string Class of brokers; empty where none is set.
"""
_RESOURCE: Final = "resource string cpu, memory, direct_memory, bandwidth_in, bandwidth_out."
_INTERVAL: Final = """
    value double The estimate.
    low double Lower end of the 90 % interval.
    high double Upper end of it.
"""

COST_TERMS: Final = Table(
    name="cost_terms",
    job="costs",
    meaning="One row for each term: what one unit of a rate uses of a resource.",
    schema=columns(
        f"""{_CLASS}{_RESOURCE}
        rate string msgs_in_per_s, msgs_out_per_s, bytes_in_per_s, bytes_out_per_s, topics, \
            connections.
        {_INTERVAL.strip()}
        typical_usage double What the class' mean rate costs of the resource.
        verdict string known; vague: a wide interval; entangled: cannot be separated from others; \
            unvaried: never varied within a broker.
        partners string The rates that it cannot be separated from, with commas.
        """
    ),
)
COST_QUALITY: Final = Table(
    name="cost_quality",
    job="costs",
    meaning="One row for each class and resource: how well its costs predicted what was held out.",
    schema=columns(
        f"""{_CLASS}{_RESOURCE}
        refused string Why there are no terms; null if there are.
        minutes bigint Minutes of brokers in which it was measured.
        mape double Mean absolute error in held-out minutes, as a fraction.
        baseline_mape double The same error of the rule of traffic shares.
        coverage double How many of these minutes lay in their 90 % interval, a fraction.
        typical_error double Half the 90 % interval of what typical traffic costs, as a fraction \
            of it.
        drift double Change of what typical traffic costs from the first to the last half, as a \
            fraction.
        drifted boolean Whether that is more than chance.
        """
    ),
)
BACKGROUNDS: Final = Table(
    name="backgrounds",
    job="costs",
    meaning="One row for each broker and resource: what it uses without any traffic.",
    schema=columns(
        f"""{_CLASS}
        broker string Broker.
        {_RESOURCE}
        {_INTERVAL.strip()}
        """
    ),
)

UNIT: Final = ("cluster", "broker_class", "broker")
USAGE: Final = tuple(f"{resource}_usage" for resource in RESOURCES)
LIMITS: Final = tuple(f"{resource}_limit" for resource in RESOURCES)
AMOUNTS: Final = (*RATES, *USAGE, *LIMITS)

MOST_ROWS: Final = 250_000
MOST_BROKERS: Final = 10_000
_MOST_SECONDS: Final = 60.0
_TIMES_USUAL: Final = 20.0
_TIMES_LIMIT: Final = 10.0


def run(work: Work) -> list[str]:
    """Estimate costs from ingested reports; write the tables.

    Raises:
        PipelineError: nothing was ingested, or there are too many brokers.
    """
    load = between(work.store.table("broker_load"), work.since, work.until)
    # On disk, so that memory does not grow with the history.
    of_minutes = plausible(minutes(load)).persist(StorageLevel.DISK_ONLY)
    try:
        units = [
            Unit(*row)
            for row in of_minutes.select(*UNIT).distinct().limit(MOST_BROKERS + 1).collect()
        ]
        if len(units) > MOST_BROKERS:
            text = f"there are more than {MOST_BROKERS} brokers"
            raise PipelineError(f"table broker_load: {text}; expected fewer, or choose by --since")
        step = max(1, -(-of_minutes.count() // MOST_ROWS))
        found = learn(_rows(of_minutes, sorted(units), step), sorted(units), step)
    finally:
        of_minutes.unpersist()
    frames = {
        table: work.spark.createDataFrame(
            [tuple(row[name] for name in table.schema.names) for row in rows], table.schema
        )
        for table, rows in zip((COST_TERMS, COST_QUALITY, BACKGROUNDS), found, strict=True)
    }
    # Also without any unit: costs of former history would be wrong.
    work.store.replace("costs", frames, {})
    return list(summary(found)) or ["no report of a broker in the asked-for time: no costs"]


def minutes(broker_load: DataFrame) -> DataFrame:
    """Return one row for each minute of each broker in which it reported.

    In: the table ``broker_load``. Out: `UNIT`, ``minute`` (since 1970, by the broker's
    clock) and `AMOUNTS`; a resource that was not measured is null. Reports of unhealthy
    brokers are left out, and reports without the window of their rates.
    """
    known = broker_load.where("healthy and window_s > 0")
    seconds = F.least(F.coalesce("interval_s", "window_s"), F.lit(_MOST_SECONDS))
    weighted = known.select(
        *UNIT,
        F.floor(F.col("reported_at_ms") / MINUTE_MS).alias("minute"),
        F.greatest(seconds, F.lit(1e-3)).alias("seconds"),
        *(F.col(name) for name in RATES if name != "connections"),
        (F.col("producers") + F.col("consumers")).alias("connections"),
        *(
            F.when(F.col(f"{resource}_limit") > 0, F.col(f"{resource}_{amount}")).alias(
                f"{resource}_{amount}"
            )
            for amount in ("usage", "limit")
            for resource in RESOURCES
        ),
    )
    # A report in which a resource was not measured takes no part in that resource's mean.
    means = [weighted_mean(F.col(name), F.col("seconds")).alias(name) for name in AMOUNTS]
    return weighted.groupBy(*UNIT, "minute").agg(*means)


def plausible(of_minutes: DataFrame) -> DataFrame:
    """Return minutes without impossible values.

    A jump of a counter has more leverage than a month of valid minutes, and no residual shows it.
    Minutes with a rate above twenty times the 99th percentile of the class are left out; usage
    above ten times the limit counts as not measured.
    """
    of_class = of_minutes.groupBy("cluster", "broker_class").agg(
        *(F.percentile_approx(name, 0.99, 1000).alias(f"most_{name}") for name in RATES)
    )
    believed = [
        (F.col(f"most_{name}") <= 0) | (F.col(name) <= _TIMES_USUAL * F.col(f"most_{name}"))
        for name in RATES
    ]
    usage = {
        used: F.when(F.col(used) <= _TIMES_LIMIT * F.col(limit), F.col(used))
        for used, limit in zip(USAGE, LIMITS, strict=True)
    }
    joined = of_minutes.join(F.broadcast(of_class), ["cluster", "broker_class"])
    sound = joined.where(reduce(Column.__and__, believed))
    return sound.select(*of_minutes.columns).withColumns(usage)


Flags = NDArray[np.bool_]


class Unit(NamedTuple):
    """One broker in one class."""

    cluster: str
    broker_class: str
    broker: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Rows:
    """Means of minutes of units, by unit and then by minute.

    ``rates`` (n, 6) are in the order of `RATES`; ``usage`` and ``limit`` (n, 5) in that of
    `RESOURCES`, NaN if not measured.
    """

    unit: Ints
    minute: Ints
    rates: FloatArray
    usage: FloatArray
    limit: FloatArray

    def take(self, chosen: Flags | Ints | slice) -> "Rows":
        return Rows(**{one.name: getattr(self, one.name)[chosen] for one in fields(self)})


def _rows(of_minutes: DataFrame, units: Sequence[Unit], step: int) -> Rows:
    means = of_minutes.groupBy(*UNIT, (F.floor(F.col("minute") / step) * step).alias("minute")).agg(
        *(F.avg(name).cast("double").alias(name) for name in AMOUNTS)
    )
    found = means.toArrow()
    number = {one: place for place, one in enumerate(units)}
    names = (found.column(name).to_pylist() for name in UNIT)
    unit = np.array([number[Unit(*name)] for name in zip(*names, strict=True)], dtype=np.int64)
    amounts = [
        np.column_stack([found.column(name).to_numpy().astype(np.float64) for name in group])
        for group in (RATES, USAGE, LIMITS)
    ]
    minute = found.column("minute").to_numpy().astype(np.int64)
    rows = Rows(unit=unit, minute=minute, rates=amounts[0], usage=amounts[1], limit=amounts[2])
    return rows.take(np.lexsort((minute, unit)))


HOLD_OUT_EVERY: Final = 5
LEAST_MINUTES: Final = 240
LEAST_BLOCKS: Final = 20
LEAST_VARIATION: Final = 0.01
BLOCKS_MINUTES: Final = (1440, 360, 60, 10)
WANTED_BLOCKS: Final = 40
THRESHOLD: Final = 0.9
"""Usage from this fraction of the limit on is a lower bound. The measured usage of a full broker
is its limit with the error of measurement, which is less than a tenth."""

Found = tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]
"""Rows of `COST_TERMS`, `COST_QUALITY` and `BACKGROUNDS`."""


def block_minutes(rows: Rows, class_of: Ints) -> int:
    """Return the length of blocks, within which errors may be correlated: a day if possible.

    It is the longest of `BLOCKS_MINUTES` of which the largest class has `WANTED_BLOCKS`, enough to
    estimate the covariance.
    """
    for length in BLOCKS_MINUTES:
        blocks = np.unique(np.column_stack([rows.unit, rows.minute // length]), axis=0)
        if np.bincount(class_of[blocks[:, 0]]).max() >= WANTED_BLOCKS:
            return length
    return BLOCKS_MINUTES[-1]


def learn(rows: Rows, units: Sequence[Unit], step: int = 1, block: int = 0) -> Found:
    """Return the rows of the tables; each of ``rows`` stands for ``step`` minutes.

    Blocks of ``block`` minutes are independent; 0 is `block_minutes`.
    """
    found: Found = ([], [], [])
    if not len(rows.unit):
        return found
    names = sorted({(one.cluster, one.broker_class) for one in units})
    class_of = np.array([names.index((one.cluster, one.broker_class)) for one in units])
    length = block or block_minutes(rows, class_of)
    # The median is not moved by a clock that was years ahead for once.
    late = rows.minute >= np.median(rows.minute)
    for number, (cluster, name) in enumerate(names):
        mine = class_of[rows.unit] == number
        for resource in range(len(RESOURCES)):
            key = {"cluster": cluster, "broker_class": name, "resource": RESOURCES[resource]}
            chosen = mine & ~np.isnan(rows.usage[:, resource])
            of = _Class(rows.take(chosen), late[chosen], resource, length, step)
            found[1].append({**key, **of.quality()})
            found[0].extend({**key, **term} for term in of.terms())
            found[2].extend(
                {**key, "broker": units[unit].broker, **term} for unit, term in of.backgrounds()
            )
    return found


class _Class:
    """All rows of one class in which one resource was measured, and what they say of its costs."""

    def __init__(self, rows: Rows, late: Flags, resource: int, length: int, step: int) -> None:
        self.rows, self._late, self._resource, self._step = rows, late, resource, step
        self.usage, limit = rows.usage[:, resource], rows.limit[:, resource]
        self._full_from = np.where(limit > 0, THRESHOLD * limit, np.inf)
        self.full = self.usage >= self._full_from
        self.block = rows.minute // length
        part = rows.minute // max(1, length // PARTS)
        self._place = np.column_stack([rows.unit, self.block, part])
        mean = rows.rates.mean(axis=0) if len(rows.unit) else np.zeros(len(RATES))
        self.scale = np.where(mean > 0, mean, 1.0)
        self.x = rows.rates / self.scale
        self.fit: Fit | None = None
        self.refused = self._refused()

    def _refused(self) -> str | None:
        measured, whole = (int(one) * self._step for one in (len(self.usage), (~self.full).sum()))
        if measured == 0:
            return "was never measured"
        if whole < LEAST_MINUTES:
            text = f"{whole} minutes below {100 * THRESHOLD:.0f} % of the limit"
            return f"has {text}; expected {LEAST_MINUTES} or more"
        blocks = int(numbered(self.rows.unit, self.block)[-1]) + 1
        if blocks < LEAST_BLOCKS:
            return f"has {blocks} stretches of time; expected {LEAST_BLOCKS} or more"
        around = self.x - group_means(numbered(self.rows.unit), np.ones(len(self.x)), self.x)
        variation = float(np.sqrt(np.square(around).mean(axis=0).max()))
        if variation < LEAST_VARIATION:
            text = f"{variation:.2%} of its mean within brokers"
            return f"traffic varied by {text}; expected {LEAST_VARIATION:.0%} or more"
        self.fit = self._fitted(np.ones(len(self.usage), dtype=np.bool_))
        return None

    def _fitted(self, chosen: Flags) -> "Fit":
        return fitted(
            self.x[chosen], self.usage[chosen], self._full_from[chosen], self._place[chosen]
        )

    def quality(self) -> dict[str, Any]:
        found: dict[str, Any] = dict.fromkeys(COST_QUALITY.schema.names[4:])
        found |= {"refused": self.refused, "minutes": len(self.usage) * self._step}
        if self.fit is None:
            return {**found, "drifted": False}
        varied = (np.diag(self.fit.gram) > 0).astype(np.float64)
        amount = float(varied @ self.fit.costs)
        deviation = float(np.sqrt(varied @ self.fit.covariance @ varied))
        reach = student_95(self.fit.freedom) * deviation
        found["typical_error"] = reach / amount if amount > 0 else None
        return {**found, **self._trial(), **self._drift()}

    def _trial(self) -> dict[str, float]:
        """Return the errors in held-out blocks of costs that were learned from the others.

        Full rows are left out, because their demand is not known. The rule has the means of each
        broker in the other blocks.
        """
        held = self.block % HOLD_OUT_EVERY == HOLD_OUT_EVERY - 1
        asked = (
            held & ~self.full & (self.usage > 0) & np.isin(self.rows.unit, self.rows.unit[~held])
        )
        if not asked.any():
            return {}
        one, units = self._fitted(~held), self.rows.unit
        at, used = units[asked], self.usage[asked]
        predicted = one.background[at] + self.x[asked] @ one.costs
        error = np.abs(used - predicted)
        counts = np.maximum(np.bincount(units[~held], minlength=at.max() + 1), 1)
        mean_usage = np.bincount(units[~held], self.usage[~held], at.max() + 1) / counts
        mean = np.stack(
            [np.bincount(units[~held], rate[~held], at.max() + 1) / counts for rate in self.x.T], 1
        )
        share = _shares(self.x[asked] * self.scale, mean[at] * self.scale)[:, self._resource]
        within = error <= one.reach * one.deviation(predicted)
        return {
            "mape": float(np.mean(error / used)),
            "baseline_mape": float(np.mean(np.abs(used - share * mean_usage[at]) / used)),
            "coverage": float(np.mean(within)),
        }

    def _drift(self) -> dict[str, Any]:
        if not (self._late.any() and (~self._late).any()):
            return {"drifted": False}
        first, last = self._fitted(~self._late), self._fitted(self._late)
        along = ((np.diag(first.gram) > 0) & (np.diag(last.gram) > 0)).astype(np.float64)
        before, after = float(along @ first.costs), float(along @ last.costs)
        deviation = float(np.sqrt(along @ (first.covariance + last.covariance) @ along))
        sure = abs(along @ (last.free - first.free)) > _SURE * deviation > 0
        size = max(before, after)
        # The relative growth of a cost of 0 is not defined.
        fraction = (after - before) / max(before, size / _MOST_TIMES) if size > 0 else 0.0
        return {
            "drift": fraction,
            "drifted": bool(sure) and abs(after - before) > _WORTH_TELLING * size,
        }

    def terms(self) -> Iterator[dict[str, Any]]:
        if self.fit is None:
            return
        bounds, partners = self._most(), entangled(self.fit.gram)
        for term, rate in enumerate(RATES):
            most = float(bounds[term])
            if not np.isfinite(most):
                continue
            value = min(float(self.fit.costs[term]), most)
            low, high = interval(term, self.fit.free, self.fit.root, most, self.fit.freedom)
            low, high = min(low, value), max(high, value)
            scale = float(self.scale[term])
            yield {
                "rate": rate,
                "value": value / scale,
                "low": low / scale,
                "high": high / scale,
                "typical_usage": value,
                "verdict": verdict(
                    varied=bool(self.fit.gram[term, term] > 0),
                    partners=partners[term],
                    interval=(low, value, high),
                    usage=float(self.usage.mean()),
                ),
                "partners": ",".join(partners[term]),
            }

    def _most(self) -> FloatArray:
        """Return upper bounds of the terms: one term causes the whole usage of a broker."""
        unit = numbered(self.rows.unit)
        first = np.unique(unit, return_index=True)[1]
        both = group_means(unit, np.ones(len(unit)), np.column_stack([self.x, self.usage]))[first]
        rates, usage = both[:, :-1], both[:, -1:]
        # Brokers with little of the rate are excluded: their means have large errors.
        enough = rates > 0.5 * rates.mean(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.where(enough, usage / rates, np.inf).min(axis=0))

    def backgrounds(self) -> Iterator[tuple[int, dict[str, float]]]:
        if self.fit is None:
            return
        for unit, (value, variance) in self.fit.idle.items():
            reach = student_95(self.fit.freedom) * float(np.sqrt(variance))
            ends = {"low": max(value - reach, 0.0), "high": max(value + reach, 0.0)}
            yield unit, {"value": max(value, 0.0), **ends}


_SURE: Final = 3.5
"""Standard deviations: one false alarm in two thousand unchanged terms."""

_WORTH_TELLING: Final = 0.1
_MOST_TIMES: Final = 10.0

MOST_CONDITION: Final = 30.0
"""Condition indices above this indicate collinearity (Belsley, Kuh and Welsch 1980)."""

_SHARED: Final = 0.5
_VAGUE: Final = 0.5
_NEGLIGIBLE: Final = 0.01


def entangled(gram: FloatArray) -> list[tuple[str, ...]]:
    """Return for each term those that it cannot be separated from.

    Terms are entangled if a direction with a condition index above 30 has at least half of the
    variance of two or more of them (Belsley's variance decomposition).
    """
    size = np.sqrt(np.maximum(np.diag(gram), 0.0))
    varied = np.flatnonzero(size > 0)
    partners: list[set[int]] = [set() for _ in RATES]
    if len(varied):
        inner = gram[np.ix_(varied, varied)] / np.outer(size[varied], size[varied])
        values, vectors = np.linalg.eigh(inner)
        safe = np.maximum(values, float(values.max()) * 1e-15)
        parts = vectors**2 / safe
        shares = parts / parts.sum(axis=1, keepdims=True)
        for direction in np.flatnonzero(np.sqrt(values.max() / safe) > MOST_CONDITION):
            together = set(varied[shares[:, direction] > _SHARED].tolist())
            for term in together:
                partners[term] |= together - {term}
    return [tuple(RATES[other] for other in sorted(others)) for others in partners]


def verdict(
    *, varied: bool, partners: Sequence[str], interval: tuple[float, float, float], usage: float
) -> str:
    """Return how well a term is known; all amounts are at typical rates.

    A term is known if its interval extends at most half of its value to either side, or by a
    negligible part of the usage.
    """
    if not varied:
        return "unvaried"
    low, value, high = interval
    if max(high - value, value - low) <= max(_VAGUE * value, _NEGLIGIBLE * usage):
        return "known"
    return "entangled" if partners else "vague"


def _shares(rates: FloatArray, mean: FloatArray) -> FloatArray:
    """Return (n, 5): usage by the rule of traffic shares, relative to that at the mean rates."""

    def share(*which: int) -> FloatArray:
        total = mean[:, which].sum(axis=1)
        return np.asarray(rates[:, which].sum(axis=1) / np.where(total > 0, total, np.inf))

    found = np.ones((len(rates), len(RESOURCES)))
    found[:, CPU] = (share(MSGS_IN, MSGS_OUT) + share(BYTES_IN, BYTES_OUT)) / 2.0
    found[:, DIRECT_MEMORY] = share(BYTES_IN, BYTES_OUT)
    found[:, BANDWIDTH_IN], found[:, BANDWIDTH_OUT] = share(BYTES_IN), share(BYTES_OUT)
    found[:, MEMORY] = 1.0
    return found


def summary(found: Found) -> Iterator[str]:
    """Yield lines of text: the terms of each class, their quality, and what is missing."""
    terms, quality, _ = found
    for row in quality:
        of = f"{row['resource']} of class {row['broker_class'] or '(none)'} of {row['cluster']}"
        if row["refused"]:
            yield f"{of}: no costs, {row['resource']} {row['refused']}"
            continue
        off, rule, within = (
            "-" if row[name] is None else f"{row[name]:.1%}"
            for name in ("mape", "baseline_mape", "coverage")
        )
        yield (
            f"{of}, {row['minutes']:,} minutes: held-out minutes {off} off (traffic shares "
            f"{rule}), {within} within their 90 %"
        )
        mine = [one for one in terms if all(one[name] == row[name] for name in _KEY)]
        yield from _of_terms(mine, UNITS[row["resource"]])
        if row["drifted"]:
            yield f"    typical traffic costs {row['drift']:+.0%} in the last half"


_KEY: Final = ("cluster", "broker_class", "resource")


def _of_terms(terms: Iterable[Mapping[str, Any]], unit: str) -> Iterator[str]:
    for one in terms:
        if one["verdict"] == "known" and one["low"] <= 0.0:
            continue  # known to be negligible
        times, per = PER[one["rate"]]
        value, low, high = (f"{one[name] * times:,.4g}" for name in ("value", "low", "high"))
        remark = {
            "known": "",
            "entangled": f" not separable from {one['partners']}",
            "unvaried": " never varied within a broker",
        }.get(one["verdict"], " vague")
        yield f"    {per:22} {value:>9} {unit} [{low} to {high}]{remark}"
