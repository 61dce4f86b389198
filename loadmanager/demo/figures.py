"""Samples of the cluster over HTTP, as operators get them, and the figures of a run from them."""

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from statistics import fmean
from time import monotonic
from typing import Final, Literal, Self

import aiohttp

from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.demo.cluster import Member
from loadmanager.demo.traffic import TrafficReport, request
from loadmanager.reference_broker.changes import overlaps, read_record

Reason = Literal["rebalanced", "taken over"]

END_WINDOW_S: Final = 10.0
LEAST_START_S: Final = 1.5
REPORT_S: Final = 1.0
"""The greatest age of what a report of the traffic generator contains."""

LAG_S: Final = 4.0
"""A reported load is a mean over two seconds, and is reported for up to two seconds more."""

SAMPLE_TIMEOUT: Final = aiohttp.ClientTimeout(total=1.0)
CPU_USAGE: Final = re.compile(
    r'^pulsar_lb_cpu_usage\{[^}]*broker="([^"]*)"[^}]*\} (\S+)', re.MULTILINE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSample:
    """Answers of a broker and its sidecar, None without one."""

    name: str
    broker: BrokerId
    killed: bool = False
    cpu_fraction: float | None = None
    bundles: Collection[BundleId] | None = None


@dataclass(frozen=True, slots=True)
class ClusterSample:
    """All brokers at one time of the monotonic clock, and the leader."""

    at_s: float
    leader: BrokerId | None
    brokers: Sequence[BrokerSample] = field(default_factory=tuple)

    @property
    def loads(self) -> dict[BrokerId, float]:
        return {
            b.broker: b.cpu_fraction
            for b in self.brokers
            if not b.killed and b.cpu_fraction is not None
        }

    @property
    def owners(self) -> dict[BundleId, BrokerId]:
        return {bundle: b.broker for b in self.brokers for bundle in b.bundles or ()}


def cpu_fraction(metrics: str, broker: BrokerId) -> float | None:
    """Return the CPU usage of ``broker`` in a Prometheus scrape, which has it in percent."""
    for label, percent in CPU_USAGE.findall(metrics):
        if label == broker:
            return float(percent) / 100
    return None


class Observer:
    def __init__(
        self, http: aiohttp.ClientSession, members: Sequence[Member], control_secret: str
    ) -> None:
        self._http = http
        self._members = members
        self._to_broker = {"Authorization": f"Bearer {control_secret}"}

    async def sample(self) -> ClusterSample:
        """Return the answers of all brokers; a broker has a second to answer."""
        at_s = monotonic()
        leader, brokers = await asyncio.gather(
            self._leader(), asyncio.gather(*(self._sample_of(member) for member in self._members))
        )
        return ClusterSample(at_s, leader, tuple(brokers))

    async def _sample_of(self, member: Member) -> BrokerSample:
        if member.killed:
            return BrokerSample(name=member.name, broker=member.broker, killed=True)
        metrics, stats = await asyncio.gather(
            self._get(f"{member.sidecar_url}/metrics"),
            self._get(f"http://{member.broker}/loadmanager-broker/v1/stats", self._to_broker),
        )
        return BrokerSample(
            name=member.name,
            broker=member.broker,
            cpu_fraction=None if metrics is None else cpu_fraction(metrics, member.broker),
            bundles=None if stats is None else tuple(json.loads(stats)["bundles"]),
        )

    async def _leader(self) -> BrokerId | None:
        """Return the leader as the first living sidecar that answers names it."""
        for member in self._members:
            if member.killed:
                continue
            text = await self._get(f"{member.sidecar_url}/admin/v2/brokers/leaderBroker")
            if text is not None:
                return BrokerId(json.loads(text)["brokerId"])
        return None

    async def _get(self, url: str, headers: Mapping[str, str] | None = None) -> str | None:
        options = {"headers": headers, "timeout": SAMPLE_TIMEOUT}
        status, text = await request(self._http, "GET", url, **options)
        return text if status == HTTPStatus.OK else None


@dataclass(frozen=True, slots=True)
class Move:
    """A bundle that another broker serves than before, which was killed or is alive."""

    at_s: float
    bundle: BundleId
    source: BrokerId
    target: BrokerId
    reason: Reason


def imbalance(loads: Iterable[Mapping[BrokerId, float]]) -> float | None:
    """Return the mean load of the busiest broker of the last sample over the mean of all."""
    samples = list(loads)
    values: defaultdict[BrokerId, list[float]] = defaultdict(list)
    for sample in samples:
        for broker, load in sample.items():
            values[broker].append(load)
    means = [fmean(values[broker]) for broker in (samples[-1] if samples else ())]
    mean = fmean(means) if means else 0.0
    return max(means) / mean if mean > 0 else None


class Journal:
    """All samples of the cluster since the traffic began, and the moves found in them."""

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.samples: list[ClusterSample] = []
        self.moves: list[Move] = []
        self._owners: dict[BundleId, BrokerId] = {}

    def add(self, sample: ClusterSample) -> None:
        """Add a sample, and the moves since the last one.

        Brokers are not asked at one instant: a bundle moved when its former owner lists it no more.
        """
        self.samples.append(sample)
        served = {(b.broker, bundle) for b in sample.brokers for bundle in b.bundles or ()}
        silent = {b.broker for b in sample.brokers if b.bundles is None and not b.killed}
        killed = {b.broker for b in sample.brokers if b.killed}
        for bundle, owner in sample.owners.items():
            former = self._owners.setdefault(bundle, owner)
            if former != owner and (former, bundle) not in served and former not in silent:
                reason: Reason = "taken over" if former in killed else "rebalanced"
                self.moves.append(Move(sample.at_s, bundle, former, owner, reason))
                self._owners[bundle] = owner

    @property
    def imbalance_start(self) -> float | None:
        """The imbalance before the first move; after an early one some loads count as well."""
        begin_s = self.began_s + LAG_S
        first_s = self.moves[0].at_s if self.moves else float("inf")
        end_s = max(first_s, begin_s + LEAST_START_S)
        return imbalance(k.loads for k in self.samples if begin_s <= k.at_s < end_s)

    @property
    def imbalance_end(self) -> float | None:
        if not self.samples:
            return None
        begin_s = self.samples[-1].at_s - END_WINDOW_S
        return imbalance(k.loads for k in self.samples if k.at_s >= begin_s)

    @property
    def imbalance_now(self) -> float | None:
        return imbalance(k.loads for k in self.samples[-1:])


@dataclass(slots=True)
class KillEffects:
    """A broker was killed at ``at_s``; durations count from then, None until it happens."""

    name: str
    broker: BrokerId
    at_s: float
    lost: frozenset[BundleId]
    leader_before: BrokerId | None
    leader_after: BrokerId | None = None
    new_leader_s: float | None = None
    reserved_s: float | None = None
    publish_gap_s: float = 0.0

    @property
    def led(self) -> bool:
        return self.leader_before == self.broker

    def follow(self, sample: ClusterSample, bundles: int) -> None:
        """Record the leader, and whether all ``bundles`` are served, as of this sample."""
        elapsed_s = sample.at_s - self.at_s
        if sample.leader is not None and sample.leader != self.broker:
            self.leader_after = sample.leader
            if self.led and self.new_leader_s is None:
                self.new_leader_s = elapsed_s
        if self.reserved_s is None and len(sample.owners) == bundles:
            self.reserved_s = elapsed_s

    def add_report(self, report: TrafficReport) -> None:
        """Record the longest wait of a message to the lost bundles until they were served again."""
        elapsed_s = report.at_s - self.at_s
        if elapsed_s <= 0:
            return
        served_s = float("inf") if self.reserved_s is None else self.reserved_s + REPORT_S
        for bundle, wait_s in report.slowest_s.items():
            due_s = max(0.0, elapsed_s - wait_s)
            if bundle in self.lost and due_s <= served_s:
                self.publish_gap_s = max(self.publish_gap_s, min(wait_s, elapsed_s))

    def to_json(self) -> dict[str, object]:
        return {
            "killed_broker": f"{self.name} ({self.broker})",
            "leader_before": self.leader_before,
            "leader_after": self.leader_after,
            "new_leader_s": rounded(self.new_leader_s),
            "reserved_s": rounded(self.reserved_s),
            "publish_gap_s": rounded(self.publish_gap_s),
        }


@dataclass(frozen=True, slots=True)
class Evidence:
    """The brokers' own records: bundles that were served, and by two brokers at the same time."""

    served: int
    double_owned: int

    @classmethod
    def of(cls, records: Mapping[Path, float | None]) -> Self:
        """Evaluate each broker's record; one that was killed was dead at the time beside it."""
        served = [
            one for path, dead_at_s in records.items() for one in read_record(path, dead_at_s)
        ]
        double_owned = {overlap.first.bundle for overlap in overlaps(served)}
        return cls(len({interval.bundle for interval in served}), len(double_owned))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of a finished run. ``settings`` are those that the run was made with."""

    leader: BrokerId | None
    leader_name: str
    bundles: int
    moves: int
    taken_over: int
    imbalance_start: float | None
    imbalance_end: float | None
    traffic: TrafficReport
    evidence: Evidence
    seconds: float
    settings: Mapping[str, object]
    kills: Sequence[KillEffects] = ()

    def to_json(self) -> dict[str, object]:
        """Return the summary as JSON values; the fields of the first kill are at the top, too."""
        counts = ("lookups", "lookup_errors", "published", "publish_errors", "publish_retries")
        found: dict[str, object] = {"leader": self.leader}
        found |= {name: self.settings[name] for name in ("brokers", "bundles", "topics")}
        found |= {"moves": self.moves, "taken_over": self.taken_over}
        found["imbalance_start"] = rounded(self.imbalance_start)
        found["imbalance_end"] = rounded(self.imbalance_end)
        found |= {name: getattr(self.traffic, name) for name in counts}
        found |= {"double_owned": self.evidence.double_owned, "seconds": rounded(self.seconds)}
        if self.kills:
            found |= self.kills[0].to_json()
            found["kills"] = [kill.to_json() for kill in self.kills]
        return found | {"settings": dict(self.settings)}

    @property
    def broken_promises(self) -> tuple[str, ...]:
        traffic = self.traffic
        unanswered = "lookups had no good answer from a living sidecar, the last: "
        unaccepted = "messages were accepted by no broker in time, the last: "
        promises = (
            (self.evidence.double_owned, "bundles were served by two brokers at the same time"),
            (traffic.lookup_errors, unanswered + traffic.last_lookup_error),
            (traffic.publish_errors, unaccepted + traffic.last_publish_error),
        )
        broken = [f"{count} {what}" for count, what in promises if count]
        if self.evidence.served != self.bundles:
            # An incomplete record proves little.
            text = f"{self.evidence.served} of {self.bundles}"
            broken.append(f"the brokers' records list {text} bundles")
        broken += [
            f"not every bundle was served again after {kill.name} was killed"
            for kill in self.kills
            if kill.reserved_s is None
        ]
        return tuple(broken)


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
