"""Frames: the state of the leader at each round, from the events of a segment of history."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from loadmanager.config import ConfigError
from loadmanager.config.strategies import Wanted, planner_for
from loadmanager.core.bundle_task import AskedBy, TaskKind, TaskState
from loadmanager.core.columns import BrokerColumns, BundleColumns, Indices, Mask, OwnedRows
from loadmanager.core.errors import MalformedContent
from loadmanager.core.history.schema import TRAFFIC
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import BrokerUrls, LoadReport
from loadmanager.core.memory import RoundMemory
from loadmanager.core.plan import Cause
from loadmanager.core.policies import NO_POLICIES, Policies
from loadmanager.core.scores import RESOURCES, FloatArray
from loadmanager.core.snapshot.codec import decode_snapshot
from loadmanager.core.snapshot.document import InForce, Snapshot
from loadmanager.core.wire.reports import report_to_json
from loadmanager.pipeline.replay.events import (
    CONNECTIONS,
    Averages,
    Brokers,
    Bundles,
    Event,
    LatestReports,
    Report,
    owned_rows,
    owners,
)

_REMEMBERED_TICKS: Final = 8
_RELOCATING: Final = frozenset({TaskKind.PLACE, TaskKind.MOVE})
_ORDERED: Final = frozenset({"moved", "placed"})
_ANYBODY: Final = LoadReport(
    broker=BrokerId("any:0001"),
    urls=BrokerUrls(http_url=""),
    sidecar_url="",
    reported_at_ms=0,
    started_at_ms=0,
)


CLOCK_SET_BACK: Final = "clock_set_back"
NO_BASE_YET: Final = "no_base_yet"
REPORT_MISSING: Final = "report_missing"
BUNDLES_MISSING: Final = "bundles_missing"
UNREADABLE: Final = "unreadable"

REFUSALS: Final[Mapping[str, str]] = {
    CLOCK_SET_BACK: "the leader's clock was set back",
    NO_BASE_YET: "no base round before it in its stretch could be read",
    REPORT_MISSING: "a load report that the leader had is not in the history",
    BUNDLES_MISSING: "lines of the bundles of a base round are missing",
    UNREADABLE: "its memory, constraints or settings cannot be read",
}
"""Why a round cannot be replayed."""


"""A snapshot needs at least one broker."""


def by_planner(body: Mapping[str, Any]) -> bool:
    """Return whether the planner decided a round; it did not with a strategy of before 0.4."""
    return bool(body["shedder"] != "greedy_rate")


def recorded_parts(body: Mapping[str, Any]) -> Snapshot:
    """Return a snapshot with the settings of a round, and a base's memory and constraints.

    Rounds that the planner did not decide have no settings.

    Raises:
        MalformedContent: one of them violates the format.
    """
    document: dict[str, Any] = {
        "takenAtMs": body["at_ms"],
        "brokers": {_ANYBODY.broker: report_to_json(_ANYBODY)},
    }
    where = f"round {body['round']} of epoch {body['epoch']}"
    for name in ("settings", *(("memory", "constraints") if body["base"] else ())):
        try:
            document[name] = json.loads(body[name])
        except (TypeError, ValueError):
            raise MalformedContent(where, f"{name} = {body[name]!r:.80}", "JSON") from None
    if not by_planner(body):
        document["settings"] = {}
    return decode_snapshot(where, json.dumps(document).encode())


def broker_columns(
    columns: Mapping[str, Any], reports: Sequence[Report], now_s: float
) -> BrokerColumns:
    """Return the brokers at the time of the round; ``columns`` are the lists of the line."""
    connections = [one.connections for one in reports]
    return BrokerColumns(
        names=tuple(BrokerId(name) for name in columns["broker"]),
        usage=_table(columns, [f"{name}_usage" for name in RESOURCES]),
        limit=_table(columns, [f"{name}_limit" for name in RESOURCES]),
        variance=np.full((len(reports), len(RESOURCES)), np.nan),
        traffic=_table(columns, [one.name for one in TRAFFIC]),
        long_msgs_per_s=_floats(columns["long_msgs_per_s"]),
        preallocated_msgs_per_s=_floats(columns["preallocated_msgs_per_s"]),
        load_ema=_floats(columns["load_ema"]),
        bytes_ema=_floats(columns["bytes_ema"]),
        seen_s=now_s - _floats(columns["age_s"]),
        topics=np.array(columns["topics"], dtype=np.int64),
        connections=np.array(connections, dtype=np.int64),
        draining=np.array(columns["draining"], dtype=np.bool_),
        persistent=np.array(columns["persistent_topics"], dtype=np.bool_),
        non_persistent=np.array(columns["non_persistent_topics"], dtype=np.bool_),
        versions=tuple(columns["version"]),
        started_at_ms=tuple(columns["started_at_ms"]),
    )


def _table(columns: Mapping[str, Any], names: Sequence[str]) -> FloatArray:
    found = np.array([columns[name] for name in names], dtype=np.float64)
    return found.reshape(len(names), -1).T.copy()


def _floats(values: Sequence[float | None]) -> FloatArray:
    """Return the values, NaN for null."""
    return np.array(values, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class CarriedOut:
    """A bundle that went to another broker; ``source`` is None if it had no owner."""

    bundle: str
    source: str | None
    target: str
    cause: Cause


@dataclass(slots=True)
class CarriedOutMoves:
    """Collects the moves that were carried out, in order.

    In a term with ``task`` lines a move was carried out when its task reached ``serving``: an
    order that was superseded or timed out moved nothing. Tasks that follow orders of a former
    leader were decided in that leader's term and are left out. Histories of 0.1 have no such
    lines; there every move whose order was written counts.
    """

    _tasks: list[CarriedOut] = field(default_factory=list)
    _moves: list[tuple[int, CarriedOut]] = field(default_factory=list)
    _epoch: int | None = None
    """The last epoch with a ``task`` line."""

    def task(self, body: Mapping[str, Any]) -> None:
        self._epoch = body["epoch"]
        decided = body["asked_by"] != AskedBy.RECONCILIATION.word
        if decided and body["action"] in _RELOCATING and body["state"] == TaskState.SERVING:
            self._tasks.append(_carried_out(body["bundles"][0], body))

    def move(self, body: Mapping[str, Any]) -> None:
        if body["outcome"] in _ORDERED:
            self._moves.append((body["epoch"], _carried_out(body["bundle"], body)))

    def taken(self) -> tuple[CarriedOut, ...]:
        """Return the collected moves, and clear them."""
        moves = (move for epoch, move in self._moves if epoch != self._epoch)
        found = (*self._tasks, *moves)
        self._tasks, self._moves = [], []
        return found


def _carried_out(bundle: str, body: Mapping[str, Any]) -> CarriedOut:
    return CarriedOut(bundle, body["source"], body["target"], Cause(body["cause"]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Frame:
    """The state of the leader at one round, and its decision.

    A frame that ``begins`` does not continue the state before it. ``brokers``, ``owned``,
    ``moved`` and so on are as recorded; ``reports`` are those of the rows of brokers, and
    ``broker_numbers`` the numbers of the rows in ``all_brokers``, which grows. ``rates``
    (bundles, 6) are messages and bytes in and out per second, topics and connections of the
    newest reports; ``owner`` is the row of the broker whose newest report lists a bundle, -1 for
    none. ``present`` bundles are listed by a report or ordered to a broker; others are unowned or
    deleted. ``whole`` has the row of the bundle that a new one was split from or merged of.
    ``samples`` is the number of ticks since the frame before. Base rounds have a ``memory``.
    ``moves`` are the lines of decided moves, ``carried_out`` the moves carried out until the next
    round, which was at ``until_s``.
    """

    at_s: float
    epoch: int
    number: int
    begins: bool
    brokers: BrokerColumns
    broker_numbers: Indices
    all_brokers: Brokers
    bundles: BundleColumns
    by_name: Indices
    reports: tuple[Report, ...]
    owned: OwnedRows
    owner: Indices
    rates: FloatArray
    cache_bytes: FloatArray
    present: Mask
    moved: Mapping[BundleId, BrokerId]
    unowned: tuple[BundleId, ...]
    policies: Policies
    in_force: InForce
    settings: str
    memory: RoundMemory | None
    session_doubtful: bool
    membership_changed_s: float
    departures_s: tuple[float, ...]
    samples: int
    whole: Mapping[int, int]
    moves: tuple[Mapping[str, Any], ...] = ()
    carried_out: tuple[CarriedOut, ...] = ()
    until_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Refused:
    """A round that cannot be replayed, with the reason: a key of `REFUSALS`."""

    at_s: float
    number: int
    reason: str
    detail: str = ""
    until_s: float = 0.0


@dataclass(slots=True)
class Frames:
    """Reads events in order and yields a frame, or a refusal, for each round.

    Memory holds the state of one moment, independently of the length of the segment.
    """

    bundles: Bundles = field(default_factory=Bundles)
    brokers: Brokers = field(default_factory=Brokers)
    _latest: LatestReports = field(init=False)
    averages: Averages = field(default_factory=Averages.none)
    """Those of the leader by now."""

    sampled_since_base: int = 0
    _rounds: dict[tuple[int, int], tuple[int, Averages]] = field(default_factory=dict)
    _at_tick: dict[int, Averages] = field(default_factory=dict)
    _ticks: int = 0
    _whole: dict[int, int] = field(default_factory=dict)
    _policies: Policies = NO_POLICIES
    _in_force: tuple[str, InForce] | None = None
    _pending: Frame | Refused | None = None
    _moves: list[Mapping[str, Any]] = field(default_factory=list)
    _carried_out: CarriedOutMoves = field(default_factory=CarriedOutMoves)
    _last_s: float = float("-inf")
    _based: bool = False
    _late: list[Mapping[str, Any]] = field(default_factory=list)
    """Ticks between the bundles of a first base and its round, which names the current reports."""

    def __post_init__(self) -> None:
        self._latest = LatestReports(self.bundles)

    def of(self, events: Iterable[Event]) -> Iterator[Frame | Refused]:
        for event in events:
            done = self._take(event)
            if done is not None:
                yield done
        done = self._finished(None)
        if done is not None:
            yield done

    def _take(self, event: Event) -> Frame | Refused | None:
        body = event.body
        if event.kind == "report":
            self._latest.offer(event)
        elif event.kind == "tick":
            if self._based or not self._rounds:
                self._tick(body)
            else:
                self._late.append(body)
        elif event.kind == "bundles":
            rows = self.bundles.rows(event.names)
            self.averages = Averages.recorded(len(self.bundles), rows, event.numbers)
            self._at_tick, self.sampled_since_base = {}, 0
            self._rounds = {(event.body["epoch"], event.body["round"]): (len(rows), self.averages)}
        elif event.kind == "cut":
            self._cut(body)
        elif event.kind == "move":
            self._moves.append(body)
            self._carried_out.move(body)
        elif event.kind == "task":
            self._carried_out.task(body)
        elif event.kind == "round":
            done = self._finished(body["at_ms"] / 1000)
            self._pending = self._round(body)
            late, self._late = self._late, []
            for tick in late:
                self._tick(tick)
            return done
        return None

    def _finished(self, next_s: float | None) -> Frame | Refused | None:
        """Return the previous round, whose moves and end are now known."""
        done, moves = self._pending, tuple(self._moves)
        carried_out = self._carried_out.taken()
        self._pending, self._moves = None, []
        if done is None:
            return None
        until_s = done.at_s if next_s is None else max(next_s, done.at_s)
        if isinstance(done, Refused):
            return replace(done, until_s=until_s)
        return replace(done, moves=moves, carried_out=carried_out, until_s=until_s)

    def _tick(self, body: Mapping[str, Any]) -> None:
        self._at_tick[body["tick"] - body["sampled"]] = self.averages
        for name, at_ms in zip(*body["taken"].values(), strict=True):
            self._latest.take(name, at_ms)
        for name in body["left"]:
            self._latest.forget(name)
        if body["sampled"]:
            self._sample()
        self._at_tick[body["tick"]] = self.averages
        for tick in list(self._at_tick)[:-_REMEMBERED_TICKS]:
            del self._at_tick[tick]

    def _sample(self, times: int = 1) -> None:
        latest = self._latest
        latest.grow()
        for _ in range(times):
            self.averages = self.averages.sampled(
                latest.rates[:, :4], latest.rates[:, 4], latest.listed
            )
        self._ticks += times
        self.sampled_since_base += times

    def _cut(self, body: Mapping[str, Any]) -> None:
        whole, parts = self.bundles.row(body["whole"]), self.bundles.rows(body["parts"])
        if body["action"] == "split":
            self._whole |= dict.fromkeys(parts.tolist(), whole)
        else:
            self._whole[whole] = int(parts[0])

    def _round(self, body: Mapping[str, Any]) -> Frame | Refused:
        passed_s = body["at_ms"] / 1000 - self._last_s
        self._last_s = body["at_ms"] / 1000
        if passed_s < 0:
            self._based = False
            return self._refused(body, CLOCK_SET_BACK, f"by {-passed_s:.3f} s")
        if body["tick"] is None:
            self._latest.only(body["brokers"]["broker"])
        named = self._latest.named(body["brokers"])
        if body["tick"] is None and np.isfinite(passed_s) and body["tick_interval_s"]:
            self._sample(round(passed_s / body["tick_interval_s"]))
        if isinstance(named, str):
            self._based &= not body["base"]
            return self._refused(body, REPORT_MISSING, named)
        averages = self._averages_at(body)
        if averages is None:
            self._based = False
            return self._refused(body, BUNDLES_MISSING, "")
        if not (body["base"] or self._based):
            return self._refused(body, NO_BASE_YET, "")
        try:
            memory = self._settle(body)
        except (MalformedContent, ConfigError) as error:
            self._based = False
            return self._refused(body, UNREADABLE, str(error))
        begins, self._based = not self._based, True
        return self._frame(body, averages, memory, tuple(named.values()), begins=begins)

    def _refused(self, body: Mapping[str, Any], reason: str, detail: str) -> Refused:
        return Refused(body["at_ms"] / 1000, body["round"], reason, detail)

    def _averages_at(self, body: Mapping[str, Any]) -> Averages | None:
        if body["base"]:
            count, averages = self._rounds.pop((body["epoch"], body["round"]), (0, Averages.none()))
            if body["tick"] is None:
                self.averages = averages
            return averages if count == body["bundles_known"] else None
        return self._at_tick.get(body["tick"], self.averages)

    def _settle(self, body: Mapping[str, Any]) -> RoundMemory | None:
        """Apply settings and constraints; return the memory of a base round of the planner."""
        text = body["settings"]
        known = None if self._in_force is None else self._in_force[0]
        if not body["base"] and text == known:
            return None
        parts = recorded_parts(body)
        planner_for("settings of the history", parts.in_force, Wanted())
        self._in_force = (text, parts.in_force)
        if not body["base"]:
            return None
        self._policies = parts.policies
        # Rounds that the planner did not decide cannot be repeated.
        return parts.memory if by_planner(body) else None

    def _frame(
        self,
        body: Mapping[str, Any],
        averages: Averages,
        memory: RoundMemory | None,
        reports: tuple[Report, ...],
        *,
        begins: bool,
    ) -> Frame:
        at_s, latest = body["at_ms"] / 1000, self._latest
        brokers = broker_columns(body["brokers"], reports, at_s)
        in_flight = body["in_flight"]
        moved = dict(zip(in_flight["bundle"], in_flight["target"], strict=True))
        under_way = self.bundles.rows(moved)
        unowned = tuple(BundleId(name) for name in body["unowned"])
        self.bundles.rows(unowned)
        present = latest.listed
        present[under_way] = True
        count = len(self.bundles)
        changed_ago_s = body["membership_changed_ago_s"]
        assert self._in_force is not None  # noqa: S101 - set by the base
        samples, self._ticks = self._ticks, 0
        whole, self._whole = self._whole, {}
        return Frame(
            at_s=at_s,
            epoch=body["epoch"],
            number=body["round"],
            begins=begins,
            brokers=brokers,
            broker_numbers=self.brokers.numbers_of(brokers.names),
            all_brokers=self.brokers,
            bundles=self.bundles.columns(averages, latest.rates[:, CONNECTIONS]),
            by_name=self.bundles.by_name(),
            reports=reports,
            owned=owned_rows(reports, count),
            owner=owners(reports, count),
            rates=latest.rates.copy(),
            cache_bytes=latest.cache_bytes.copy(),
            present=present,
            moved=moved,
            unowned=unowned,
            policies=self._policies,
            in_force=self._in_force[1],
            settings=self._in_force[0],
            memory=memory,
            session_doubtful=body["session_doubtful"],
            membership_changed_s=float("-inf") if changed_ago_s is None else at_s - changed_ago_s,
            departures_s=tuple(at_s - ago_s for ago_s in body["departed_ago_s"]),
            samples=samples,
            whole=whole,
        )
