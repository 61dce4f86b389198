"""What a run amounts to: moves, imbalance, and how long a kill was felt. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final, Literal

from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.testbed.demo.counts import TrafficReport
from loadmanager.testbed.demo.observation import ClusterLook

Reason = Literal["rebalanced", "taken over"]

END_WINDOW_S: Final = 10.0
LEAST_START_S: Final = 1.5
REPORT_S: Final = 1.0
"""How old the news in a report of the traffic generator may be."""

LAG_S: Final = 4.0
"""A load that a sidecar reports covers two seconds, and is shown for up to two seconds more."""


@dataclass(frozen=True, slots=True)
class Move:
    """A bundle that one broker served and then another.

    ``taken over`` is from a killed broker, ``rebalanced`` from a living one.
    """

    at_s: float
    bundle: BundleId
    source: BrokerId
    target: BrokerId
    reason: Reason


def imbalance(loads: Iterable[Mapping[BrokerId, float]]) -> float | None:
    """Return the busiest broker's load over the mean of all, each its mean over ``loads``.

    1.0 is perfect balance, the number of brokers the worst. Only brokers in the last
    of the loads count. None if there is no load at all.
    """
    samples = list(loads)
    values: defaultdict[BrokerId, list[float]] = defaultdict(list)
    for sample in samples:
        for broker, load in sample.items():
            values[broker].append(load)
    means = [fmean(values[broker]) for broker in (samples[-1] if samples else ())]
    mean = fmean(means) if means else 0.0
    return max(means) / mean if mean > 0 else None


class Journal:
    """All looks at the cluster since the traffic began, and the moves seen in them."""

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.looks: list[ClusterLook] = []
        self.moves: list[Move] = []
        self._owners: dict[BundleId, BrokerId] = {}

    def add(self, look: ClusterLook) -> None:
        """Keep a look and note which bundles another broker serves than before.

        Brokers are not asked at the same instant, so that a bundle on its way may be
        listed by both or by none: it has moved when the former owner lists it no more.
        """
        self.looks.append(look)
        served = {(b.broker, bundle) for b in look.brokers for bundle in b.bundles or ()}
        silent = {b.broker for b in look.brokers if b.bundles is None and not b.killed}
        killed = {b.broker for b in look.brokers if b.killed}
        for bundle, owner in look.owners.items():
            former = self._owners.setdefault(bundle, owner)
            if former != owner and (former, bundle) not in served and former not in silent:
                reason: Reason = "taken over" if former in killed else "rebalanced"
                self.moves.append(Move(look.at_s, bundle, former, owner, reason))
                self._owners[bundle] = owner

    @property
    def imbalance_start(self) -> float | None:
        """The imbalance between the first load with the skewed traffic and the first move.

        If the first move came so early that there is hardly a load before it, some after
        it count too: they make the figure smaller, never larger.
        """
        begin_s = self.began_s + LAG_S
        first_s = self.moves[0].at_s if self.moves else float("inf")
        end_s = max(first_s, begin_s + LEAST_START_S)
        return imbalance(k.loads for k in self.looks if begin_s <= k.at_s < end_s)

    @property
    def imbalance_end(self) -> float | None:
        """The imbalance over the last ten seconds."""
        if not self.looks:
            return None
        begin_s = self.looks[-1].at_s - END_WINDOW_S
        return imbalance(k.loads for k in self.looks if k.at_s >= begin_s)

    @property
    def imbalance_now(self) -> float | None:
        """The imbalance over the last look alone."""
        return imbalance(k.loads for k in self.looks[-1:])


@dataclass(slots=True)
class KillStory:
    """One broker killed at ``at_s``, and how the others took over.

    All durations are seconds from the kill, None while it has not come to that.
    ``new_leader_s`` stays None if the killed broker did not lead.
    """

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
        """Whether the killed broker was the leader."""
        return self.leader_before == self.broker

    def follow(self, look: ClusterLook, bundles: int) -> None:
        """Record the leader, and whether all ``bundles`` are served, as of this look."""
        elapsed_s = look.at_s - self.at_s
        if look.leader is not None and look.leader != self.broker:
            self.leader_after = look.leader
            if self.led and self.new_leader_s is None:
                self.new_leader_s = elapsed_s
        if self.reserved_s is None and len(look.owners) == bundles:
            self.reserved_s = elapsed_s

    def hear(self, report: TrafficReport) -> None:
        """Note the longest time a message to the lost bundles waited since the kill.

        A message that was due right after the kill waits as long as publishing stood
        still. What was late before the kill is not its fault, nor what was due only when
        all bundles were served again: another kill may have come since.
        """
        elapsed_s = report.at_s - self.at_s
        if elapsed_s <= 0:
            return
        served_s = float("inf") if self.reserved_s is None else self.reserved_s + REPORT_S
        for bundle, wait_s in report.slowest_s.items():
            due_s = max(0.0, elapsed_s - wait_s)
            if bundle in self.lost and due_s <= served_s:
                self.publish_gap_s = max(self.publish_gap_s, min(wait_s, elapsed_s))

    def to_json(self) -> dict[str, object]:
        """Return the summary's fields."""
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
    """What the brokers' own records say: bundles served at all, and by two at one moment."""

    served: int
    double_owned: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The end of a run in figures. ``settings`` are those the run was made with."""

    leader: BrokerId | None
    leader_name: str
    brokers: int
    bundles: int
    topics: int
    moves: int
    taken_over: int
    imbalance_start: float | None
    imbalance_end: float | None
    lookups: int
    lookup_errors: int
    published: int
    publish_errors: int
    publish_retries: int
    evidence: Evidence
    seconds: float
    settings: Mapping[str, object]
    kills: Sequence[KillStory] = field(default_factory=tuple)
    last_lookup_error: str = ""
    last_publish_error: str = ""

    def to_json(self) -> dict[str, object]:
        """Return the summary as JSON values; the first kill's fields stand at the top too."""
        names = ("leader", "brokers", "bundles", "topics", "moves", "taken_over")
        counts = ("lookups", "lookup_errors", "published", "publish_errors", "publish_retries")
        found: dict[str, object] = {name: getattr(self, name) for name in names}
        found["imbalance_start"] = rounded(self.imbalance_start)
        found["imbalance_end"] = rounded(self.imbalance_end)
        found |= {name: getattr(self, name) for name in counts}
        found |= {"double_owned": self.evidence.double_owned, "seconds": rounded(self.seconds)}
        if self.kills:
            found |= self.kills[0].to_json()
            found["kills"] = [kill.to_json() for kill in self.kills]
        return found | {"settings": dict(self.settings)}

    @property
    def broken_promises(self) -> tuple[str, ...]:
        """What went wrong that must never go wrong, one text each."""
        promises = (
            (self.evidence.double_owned, "bundles were served by two brokers at the same time"),
            (
                self.lookup_errors,
                "lookups had no good answer from a living sidecar, the last: "
                + self.last_lookup_error,
            ),
            (
                self.publish_errors,
                "messages were accepted by no broker in time, the last: " + self.last_publish_error,
            ),
        )
        broken = [f"{count} {what}" for count, what in promises if count]
        if self.evidence.served != self.bundles:
            # A record that says little proves little.
            text = f"{self.evidence.served} of {self.bundles}"
            broken.append(f"the brokers' records list {text} bundles")
        broken += [
            f"not every bundle was served again after {kill.name} was killed"
            for kill in self.kills
            if kill.reserved_s is None
        ]
        return tuple(broken)


def rounded(value: float | None) -> float | None:
    """Return a figure as people read it: two decimals."""
    return None if value is None else round(value, 2)
