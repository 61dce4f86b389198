"""The modelled agents of all brokers: measurement, publication and delay of load reports."""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from loadmanager.config.sections import ReportSettings
from loadmanager.config.strategies import report_rules_of
from loadmanager.core.columns import Indices, Listing, Mask
from loadmanager.core.history.records import stats_of
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import BrokerUrls, BundleStats, LoadReport, ResourceUsage
from loadmanager.core.load_tracker import BrokerLoad
from loadmanager.core.rates import BYTES_IN, BYTES_OUT, MSGS_IN, MSGS_OUT, Rates, six_digits
from loadmanager.core.report import MOST_SAMPLES, ReportRules
from loadmanager.core.scores import RESOURCES, FloatArray
from loadmanager.simulator.scenario import NoiseSettings

_GRAINS_PER_S: Final = 1024
"""Sample times are multiples of this fraction of a second, so that ages are exact."""


READING: Final = np.dtype(
    [
        ("at_s", np.float64),
        ("usage", np.float64, len(RESOURCES)),
        ("msgs_per_s", np.float64),
        ("bytes_per_s", np.float64),
        ("draining", np.bool_),
        ("started_at_ms", np.int64),
    ]
)
"""The input of the rules, one row per broker: a sample, or the last report; usage in fractions."""

Readings = NDArray[np.void]


def due(
    rules: ReportRules,
    stands: Mask,
    last: Readings,
    current: Readings,
    jitter: FloatArray,
    *,
    other_bundles: Mask,
) -> Mask:
    """Return the brokers whose samples are published, by the rules of `core.report.due`.

    ``stands`` marks brokers with a report, ``other_bundles`` those whose report lists other bundles
    than the sample.
    """
    age_s = current["at_s"] - last["at_s"]
    old = age_s >= rules.max_interval_s * (1.0 - rules.jitter_fraction * jitter)
    usage = (np.abs(current["usage"] - last["usage"]) > rules.change_points).any(axis=1)

    def moved(key: str, floor: float) -> Mask:
        change = np.abs(current[key] - last[key])
        return np.asarray((change > rules.change_fraction * last[key]) & (change >= floor))

    msgs = moved("msgs_per_s", rules.floor_msgs_per_s)
    volume = moved("bytes_per_s", rules.floor_bytes_per_s)
    changed = other_bundles | usage | msgs | volume | old
    urgent = ~stands | registered_anew(last, current)
    return np.asarray(urgent | ((age_s >= rules.min_interval_s) & changed))


def registered_anew(last: Readings, current: Readings) -> Mask:
    keys = ["draining", "started_at_ms"]
    return np.asarray(last[keys] != current[keys])


class ListedStats(Mapping[BundleId, BundleStats]):
    """A listing in the form of the bundles of a `LoadReport`; ``producers`` is by row."""

    def __init__(self, listing: Listing, producers: NDArray[np.int64]) -> None:
        self._listing = listing
        self._producers = producers

    def __getitem__(self, bundle: BundleId) -> BundleStats:
        return self._made[bundle]

    def __iter__(self) -> Iterator[BundleId]:
        return iter(self._listing.names)

    def __len__(self) -> int:
        return len(self._listing.names)

    @cached_property
    def _made(self) -> Mapping[BundleId, BundleStats]:
        return dict(zip(self._listing.names, stats_of(self.columns()), strict=True))

    def columns(self) -> dict[str, list[Any]]:
        """Return the parallel lists of a line of history of kind ``report``, in order."""
        listing = self._listing
        msgs_in, msgs_out, bytes_in, bytes_out = listing.rates.T.tolist()
        return {
            "msgs_in_per_s": msgs_in,
            "msgs_out_per_s": msgs_out,
            "bytes_in_per_s": bytes_in,
            "bytes_out_per_s": bytes_out,
            "topics": listing.topics.tolist(),
            "producers": self._producers.tolist(),
            "consumers": (listing.sessions - self._producers).tolist(),
            "cache_bytes": listing.cache_size_bytes.tolist(),
        }


class ListingRows:
    def __init__(self, broker_count: int, bundles: Sequence[BundleId]) -> None:
        self._bundles = bundles
        by_name = sorted(range(len(bundles)), key=bundles.__getitem__)
        self._by_name = np.array(by_name, dtype=np.intp)
        none = np.zeros(0, dtype=np.intp)
        self._rows = [none] * broker_count
        self._names: list[tuple[BundleId, ...] | None] = [None] * broker_count
        self.owner: Indices = np.full(len(bundles), -1, dtype=np.intp)

    def follow(self, owner: Indices) -> Indices:
        """Set the current owners; return the rows of brokers with changes."""
        changed = np.flatnonzero(owner != self.owner)
        if not len(changed):
            return changed
        brokers = np.unique(np.concatenate([self.owner[changed], owner[changed]]))
        brokers = brokers[brokers >= 0]
        self.owner = owner.copy()
        owner_by_name = owner[self._by_name]
        for broker in brokers.tolist():
            self._rows[broker] = self._by_name[owner_by_name == broker]
            self._names[broker] = None
        return brokers

    def rows(self, broker: int) -> Indices:
        return self._rows[broker]

    def names(self, broker: int) -> tuple[BundleId, ...]:
        names = self._names[broker]
        if names is None:
            names = tuple(self._bundles[row] for row in self._rows[broker].tolist())
            self._names[broker] = names
        return names


@dataclass(frozen=True, eq=False, kw_only=True)
class Reported:
    """A load report that an agent wrote at ``at_s``, and the leader saw at ``seen_s``.

    ``row`` is the row of the broker, ``rows`` are those of the bundles in order of names.
    ``totals`` are the rates of the broker. ``former`` are the bundles of the previous report.
    ``usage`` and ``limit`` are in the order of `core.scores.RESOURCES`, and so are ``mean`` and
    ``variance`` of the last samples, NaN with fewer than two.
    """

    broker: BrokerId
    row: int
    rows: Indices
    at_s: float
    seen_s: float
    usage: FloatArray
    limit: FloatArray
    mean: FloatArray
    variance: FloatArray
    totals: FloatArray
    listing: Listing
    producers: NDArray[np.int64]
    former: tuple[BundleId, ...]
    draining: bool
    started_at_ms: int

    def load(self) -> BrokerLoad:
        return BrokerLoad(
            broker=self.broker,
            seen_s=self.seen_s,
            usage=tuple(self.usage.tolist()),
            limit=tuple(self.limit.tolist()),
            variance=tuple(self.variance.tolist()),
            totals=Rates(*self.totals.tolist()),
            listing=self.listing,
            draining=self.draining,
            started_at_ms=self.started_at_ms,
            topics=int(self.listing.topics.sum()),
        )

    def report(self) -> LoadReport:
        """Return the report as written by an agent; its clock begins at 0."""
        columns = (self.usage, self.limit, self.mean, self.variance)
        cpu, memory, direct_memory, bandwidth_in, bandwidth_out = (
            None
            if limit <= 0 and used == 0
            else ResourceUsage(used, limit)
            if math.isnan(mean)
            else ResourceUsage(used, limit, mean, variance)
            for used, limit, mean, variance in zip(*(c.tolist() for c in columns), strict=True)
        )
        now, then = frozenset(self.listing.names), frozenset(self.former)
        return LoadReport(
            broker=self.broker,
            urls=BrokerUrls(http_url=f"http://{self.broker}"),
            sidecar_url=f"http://{self.broker}",
            reported_at_ms=round(self.at_s * 1000),
            started_at_ms=self.started_at_ms,
            cpu=cpu,
            memory=memory,
            direct_memory=direct_memory,
            bandwidth_in=bandwidth_in,
            bandwidth_out=bandwidth_out,
            bundles=ListedStats(self.listing, self.producers),
            gains=now - then,
            losses=then - now,
            draining=self.draining,
        )


@dataclass(frozen=True, slots=True)
class Gone:
    """The end of the registration of a broker, seen by the leader at ``seen_s``."""

    broker: BrokerId
    row: int
    seen_s: float


_FEWEST: Final = 2
_UNKNOWN: Final = np.full(len(RESOURCES), np.nan)


class VariedUsage:
    """The last samples of each broker since its bundles changed.

    A step longer than ``interval_s`` has one sample, therefore samples also expire by age.
    """

    def __init__(self, interval_s: float) -> None:
        self._kept_s = MOST_SAMPLES * interval_s
        self._taken: deque[tuple[float, FloatArray, Mask]] = deque(maxlen=MOST_SAMPLES)

    def begin(self, rows: Indices) -> None:
        for _, _, sampled in self._taken:
            sampled[rows] = False

    def add(self, now_s: float, usage: FloatArray, sampled: Mask) -> None:
        self._taken.append((now_s, usage, sampled.copy()))
        while self._taken[0][0] <= now_s - self._kept_s:
            self._taken.popleft()

    def of(self, row: int) -> tuple[FloatArray, FloatArray]:
        """Return mean and variance of each resource of a broker, NaN without two samples."""
        found = [usage[row] for _, usage, sampled in self._taken if sampled[row]]
        if len(found) < _FEWEST:
            return _UNKNOWN, _UNKNOWN
        samples = np.stack(found)
        figures = samples.mean(axis=0), samples.var(axis=0, ddof=1)
        mean, variance = (np.array(list(map(six_digits, one.tolist()))) for one in figures)
        return mean, variance


@dataclass(frozen=True, eq=False, kw_only=True)
class Measured:
    """The true state in one step: B brokers and K bundles in the rows of the world.

    ``owner`` is the row of the broker that serves each bundle, -1 for none. ``rates`` (K, 4) are
    the served rates, in the order of `core.averages`: a saturated broker serves less than the
    demand. ``usage`` and ``limit`` (B, 5) are in the units of load reports and in the order of
    `core.scores.RESOURCES`.
    """

    owner: Indices
    rates: FloatArray
    topics: NDArray[np.int64]
    producers: NDArray[np.int64]
    consumers: NDArray[np.int64]
    usage: FloatArray
    limit: FloatArray
    present: Mask
    draining: Mask
    started_at_ms: NDArray[np.int64]


class Agents:
    """The load reports of all brokers, in the rows of the world.

    A broker is ``present`` for as long as it is registered. A crashed broker stays
    registered until its session ends; the caller silences its agent until then.

    Each agent samples at its own phase, every ``sample_interval_s``. In a longer step only the last
    sample counts whose report can be seen by the end of the step, because the truth does not
    change within a step.
    """

    def __init__(
        self,
        brokers: Sequence[BrokerId],
        bundles: Sequence[BundleId],
        report: ReportSettings,
        noise: NoiseSettings,
        rng: np.random.Generator,
    ) -> None:
        self.brokers = tuple(brokers)
        self.bundles = tuple(bundles)
        self._rules = report_rules_of(report)
        self._interval_s = report.sample_interval_s
        self._noise = noise
        self._rng = rng
        count = len(self.brokers)
        self._listings = ListingRows(count, self.bundles)
        self._last = np.zeros(count, READING)
        self._listed_rows: list[Indices] = [np.zeros(0, dtype=np.intp)] * count
        self._listed_names: list[tuple[BundleId, ...]] = [()] * count
        self._stands: Mask = np.zeros(count, dtype=np.bool_)
        self._awaited: Mask = np.zeros(count, dtype=np.bool_)
        self._other_bundles: Mask = np.zeros(count, dtype=np.bool_)
        self._jitter = np.zeros(count)
        self._phase_s = np.zeros(count)
        self._silent_until_s = np.full(count, -np.inf)
        self._began_s = 0.0
        self._looked_s: float | None = None
        # The usage of each broker since its agent's last sample, and for how long.
        self._usage_sum = np.zeros((count, 5))
        self._usage_s = np.zeros((count, 1))
        self._former_usage = np.zeros((count, 5))
        self._varied = VariedUsage(report.sample_interval_s)
        self._unseen: list[Reported | Gone] = []

    @property
    def owner(self) -> Indices:
        """The owner of each bundle by the owned lists, -1 for none; without delay."""
        return self._listings.owner

    def silence(self, broker_rows: Sequence[int] | Indices, until_s: float) -> None:
        rows = np.asarray(broker_rows, dtype=np.intp)
        self._silent_until_s[rows] = np.maximum(self._silent_until_s[rows], until_s)

    def sample(self, now_s: float, measured: Measured) -> tuple[Reported, ...]:
        """Measure the step that ended at ``now_s``; return what was published in it."""
        if self._looked_s is None:
            self._began_s, self._looked_s = now_s, now_s - self._interval_s
        step_s = now_s - self._looked_s
        self._looked_s = now_s
        self._follow(measured, now_s, step_s)
        # The last sample time of each agent by now; in long steps, what is seen by then.
        long = step_s > 2 * self._interval_s + self._noise.delay_s
        by_s = now_s - self._noise.delay_s if long else now_s
        passed = np.floor((by_s - self._phase_s) / self._interval_s)
        moments_s = np.asarray(self._phase_s + passed * self._interval_s)
        sampled = moments_s > now_s - step_s
        self._usage_sum += measured.usage * step_s
        self._usage_s += step_s
        usage = self._usage_sum / self._usage_s * self._errors(measured.usage.shape, "usage")
        self._usage_sum[sampled] = self._usage_s[sampled] = 0.0
        if self._noise.usage_lags:
            former = self._former_usage
            usage, self._former_usage = former, np.where(sampled[:, np.newaxis], usage, former)
        rates = measured.rates * self._errors((len(self.bundles), 1), "rate")
        owners = self.owner + 1
        totals: FloatArray = np.column_stack(
            [
                np.bincount(owners, weights=column, minlength=len(self.brokers) + 1)[1:]
                for column in rates.T
            ]
        )
        # Readings are of the time since the start of the broker, and of now at most.
        began_s = np.maximum(measured.started_at_ms / 1000.0, self._began_s)
        taken_s = np.maximum(np.where(sampled, moments_s, now_s), began_s)
        current = np.zeros(len(self.brokers), READING)
        current["at_s"] = np.minimum(taken_s, now_s)
        current["usage"] = usage / np.where(measured.limit > 0, measured.limit, np.inf)
        current["msgs_per_s"] = totals[:, MSGS_IN] + totals[:, MSGS_OUT]
        current["bytes_per_s"] = totals[:, BYTES_IN] + totals[:, BYTES_OUT]
        current["draining"] = measured.draining
        current["started_at_ms"] = measured.started_at_ms
        last, stands = self._last, self._stands
        published = due(
            self._rules, stands, last, current, self._jitter, other_bundles=self._other_bundles
        )
        at_once = sampled | registered_anew(last, current) | ~stands
        silent = self._silent_until_s > now_s
        reporting = published & at_once & measured.present & ~silent
        rows = np.flatnonzero(reporting)
        self._varied.add(now_s, usage, sampled & measured.present)
        figures = {"rates": rates, "usage": usage, "totals": totals}
        written = tuple(
            self._reported(row, measured, float(current["at_s"][row]), **figures)
            for row in rows.tolist()
        )
        last[rows] = current[rows]
        self._stands[rows] = True
        self._jitter[rows] = self._rng.random(len(rows))
        self._unseen += written
        return written

    def news(self, now_s: float) -> list[Reported | Gone]:
        """Return the reports that the leader sees since the last call, in order of time."""
        seen = [one for one in self._unseen if one.seen_s <= now_s]
        if seen:
            self._unseen = [one for one in self._unseen if one.seen_s > now_s]
        return sorted(seen, key=lambda one: one.seen_s)

    def _follow(self, measured: Measured, now_s: float, step_s: float) -> None:
        changed = self._listings.follow(measured.owner)
        self._varied.begin(changed)
        for row in changed.tolist():
            self._other_bundles[row] = not np.array_equal(
                self._listings.rows(row), self._listed_rows[row]
            )
        for row in np.flatnonzero(self._stands & ~measured.present).tolist():
            self._stands[row] = False
            self._unseen.append(Gone(self.brokers[row], row, now_s + self._noise.delay_s))
        arrived = np.flatnonzero(measured.present & ~self._stands & ~self._awaited)
        # Their first sample is within the step, and defines their phase.
        since_s = self._rng.random(len(arrived)) * min(self._interval_s, step_s)
        self._phase_s[arrived] = now_s - np.floor(since_s * _GRAINS_PER_S) / _GRAINS_PER_S
        self._awaited = measured.present & ~self._stands

    def _errors(self, shape: tuple[int, ...], kind: Literal["usage", "rate"]) -> FloatArray:
        """Return log-normal factors with mean 1; all rates of a bundle have the same factor."""
        noise = self._noise
        fraction = noise.usage_fraction if kind == "usage" else noise.rate_fraction
        if fraction == 0:
            return np.ones((1, 1))
        variance = math.log1p(fraction * fraction)
        errors = self._rng.standard_normal(shape)
        errors *= math.sqrt(variance)
        errors -= variance / 2.0
        return np.asarray(np.exp(errors, out=errors))

    def _reported(
        self,
        row: int,
        measured: Measured,
        at_s: float,
        *,
        rates: FloatArray,
        usage: FloatArray,
        totals: FloatArray,
    ) -> Reported:
        rows, names = self._listings.rows(row), self._listings.names(row)
        former = self._listed_names[row] if self._stands[row] else ()
        self._listed_rows[row], self._listed_names[row] = rows, names
        self._other_bundles[row] = False
        producers = measured.producers[rows]
        mean, variance = self._varied.of(row)
        return Reported(
            broker=self.brokers[row],
            row=row,
            rows=rows,
            at_s=at_s,
            seen_s=at_s + self._noise.delay_s,
            usage=usage[row].copy(),
            limit=measured.limit[row].copy(),
            mean=mean,
            variance=variance,
            totals=totals[row].copy(),
            listing=Listing(
                names=names,
                rates=rates[rows],
                topics=measured.topics[rows],
                sessions=producers + measured.consumers[rows],
                cache_size_bytes=np.zeros(len(rows), dtype=np.int64),
            ),
            producers=producers,
            former=former,
            draining=bool(measured.draining[row]),
            started_at_ms=int(measured.started_at_ms[row]),
        )
