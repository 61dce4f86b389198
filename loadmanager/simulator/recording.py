"""Writes a simulation as history, as agents and a leader would.

Differences from live history: one writer writes for all; ``due`` is "first" or "simulated"; there
are no ticks; the memory of a base round is the one after the previous round; and a report takes
effect when the leader sees it, which the rounds record.
"""

import hashlib
import json
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Final

from loadmanager.core.averages import BundleAverages
from loadmanager.core.cluster import ClusterView
from loadmanager.core.history.records import (
    Origin,
    Record,
    RoundFacts,
    bundles_records,
    move_record,
    record_of,
    round_records,
)
from loadmanager.core.history.schema import HAND_OVER, TERM_CHANGE, Stream
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import LoadReport
from loadmanager.core.memory import RoundMemory, shifted
from loadmanager.core.plan import Move
from loadmanager.core.planner import Plan, Planner
from loadmanager.ports.history import HistorySink, offer_report
from loadmanager.simulator.agents import ListedStats
from loadmanager.simulator.results import MoveRecord, Why
from loadmanager.simulator.scenario import PORT, Scenario

WRITER: Final = BrokerId("simulation:0")
MONDAY_MS: Final = 1_767_571_200_000
"""The start of simulations: Monday 2026-01-05, 0:00 UTC."""

_EPOCH: Final = 1
_SAME_S: Final = 1e-6


def origin_of(scenario: Scenario, strategy: str, seed: int) -> Origin:
    """Return the writer of a simulation; the same run has the same name and the same files.

    The name depends on the content of scenario and trace, not on their paths. Raises `OSError`: the
    trace cannot be read.
    """
    content = scenario.model_dump(mode="json", exclude={"trace"})
    digest, trace = None, scenario.trace
    if trace is not None:
        status = trace.stat()
        digest = _digest(trace, status.st_mtime_ns, status.st_size)
    text = json.dumps([content, digest, strategy, seed], sort_keys=True)
    name = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return Origin(scenario.title, WRITER, name)


@lru_cache(maxsize=64)
def _digest(trace: Path, _written_ns: int, _size_bytes: int) -> str:
    with trace.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


class Recording:
    """A `Witness` that writes history; ``sink`` should block instead of dropping records.

    ``start_ms`` is the wall clock at the beginning.
    """

    def __init__(
        self,
        scenario: Scenario,
        planner: Planner,
        sink: HistorySink,
        *,
        base_every_rounds: int = 15,
        start_ms: int = MONDAY_MS,
    ) -> None:
        self._scenario, self._planner, self._sink = scenario, planner, sink
        self._base_every_rounds, self._start_ms = base_every_rounds, start_ms
        self._classes = {
            BrokerId(f"{name}:{PORT}"): group.name
            for group in scenario.brokers
            for name in group.brokers
        }
        # The times of the recent reports of each broker, in seconds and by the wall clock.
        self._recent: defaultdict[BrokerId, deque[tuple[float, int]]] = defaultdict(
            partial(deque, maxlen=64)
        )
        self._memory = RoundMemory()
        self._view: ClusterView | None = None
        self._rounds = self._moves = 0
        began = record_of(TERM_CHANGE, start_ms, epoch=_EPOCH, event="began")
        self._rounds_offer(start_ms, [began])

    def reported(self, at_s: float, report: LoadReport) -> None:
        recent, at_ms = self._recent[report.broker], self._at_ms(at_s)
        interval_s = at_s - recent[-1][0] if recent else None
        recent.append((at_s, at_ms))
        report = replace(
            report,
            reported_at_ms=at_ms,
            started_at_ms=report.started_at_ms + self._start_ms,
            broker_class=self._classes.get(report.broker, ""),
        )
        bundles = report.bundles
        columns = bundles.columns() if isinstance(bundles, ListedStats) else None
        offer_report(
            self._sink,
            report,
            at_ms,
            due="first" if interval_s is None else "simulated",
            interval_s=interval_s,
            window_s=self._scenario.report.sample_interval_s,
            columns=columns,
        )

    def round_done(
        self,
        at_s: float,
        view: ClusterView,
        plan: Plan,
        averages: Callable[[], Mapping[BundleId, BundleAverages]],
    ) -> None:
        at_ms = self._at_ms(at_s)
        brokers = view.brokers
        started_at_ms = tuple(at_ms + self._start_ms for at_ms in brokers.started_at_ms)
        view = replace(view, brokers=replace(brokers, started_at_ms=started_at_ms))
        base = self._rounds % self._base_every_rounds == 0
        self._rounds += 1
        first_move = self._moves + 1
        self._moves += len(plan.moves) + len(plan.observed)
        facts = RoundFacts(
            at_ms=at_ms,
            epoch=_EPOCH,
            round=self._rounds,
            outcome="moved" if plan.moves else "observed" if plan.observed else "quiet",
            took_s=None,
            planner=self._planner,
            steering="observing" if self._planner.settings.observe else "active",
            tick_interval_s=self._scenario.leader.tick_interval_s,
            reported_at_ms=self._seen(view),
            memory=self._memory_by_wall_clock() if base else None,
            averages=dict(averages()) if base else None,
        )
        self._view, self._memory = view, plan.memory
        self._sink.offer(
            Stream.ROUNDS,
            at_ms,
            lambda: [*bundles_records(facts, view), *round_records(facts, view, plan, first_move)],
        )

    def moved(self, record: MoveRecord) -> None:
        """Write the end of a hand-over, and the decision if no round recorded it."""
        ended_s = record.at_s if record.served_at_s is None else record.served_at_s
        records = [] if record.why is Why.SHED else self._decision(record)
        records.append(self._hand_over(record, self._at_ms(ended_s)))
        self._rounds_offer(self._at_ms(ended_s), records)

    def _decision(self, record: MoveRecord) -> list[Record]:
        """Return the decision of a move between rounds, with the view of the previous round."""
        if self._view is None:
            return []
        self._moves += 1
        move = Move(record.bundle, record.source, record.target, record.cause)
        line = move_record(
            move,
            "placed" if record.source is None else "moved",
            view=self._view,
            planner=self._planner,
            at_ms=self._at_ms(record.at_s),
            epoch=_EPOCH,
            number=0,
            move_number=self._moves,
        )
        return [line]

    def _hand_over(self, record: MoveRecord, at_ms: int) -> Record:
        served_s = record.served_at_s
        released_s = None
        if served_s is not None and record.source is not None:
            released_s = served_s - record.pause_s
        return record_of(
            HAND_OVER,
            at_ms,
            record,
            epoch=_EPOCH,
            outcome="left" if served_s is None else "finished",
            ordered_at_ms=self._at_ms(record.at_s),
            released_at_ms=None if released_s is None else self._at_ms(released_s),
            acquired_at_ms=None if served_s is None else self._at_ms(served_s),
            took_s=None if served_s is None else served_s - record.at_s,
            pause_s=None if served_s is None else record.pause_s,
        )

    def _seen(self, view: ClusterView) -> dict[BrokerId, int]:
        """Return the time of the report of each broker in the view."""
        found: dict[BrokerId, int] = {}
        seen_s = view.brokers.seen_s.tolist()
        for broker, at_s in zip(view.brokers.names, seen_s, strict=True):
            for reported_s, reported_at_ms in reversed(self._recent[broker]):
                if reported_s + self._scenario.noise.delay_s <= at_s + _SAME_S:
                    found[broker] = reported_at_ms
                    break
        return found

    def _memory_by_wall_clock(self) -> RoundMemory:
        started = {
            broker: at_ms + self._start_ms for broker, at_ms in self._memory.started_at_ms.items()
        }
        return replace(shifted(self._memory, self._start_ms / 1000), started_at_ms=started)

    def _at_ms(self, at_s: float) -> int:
        return self._start_ms + round(at_s * 1000)

    def _rounds_offer(self, at_ms: int, records: Iterable[Record]) -> None:
        self._sink.offer(Stream.ROUNDS, at_ms, lambda: records)
