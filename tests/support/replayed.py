"""Histories to replay, and replays of them without Spark."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any, Final

import numpy as np
from history_sinks import Archive, KeptHistory
from replay_events import events_of
from simulated_worlds import FREE, QUIET, scenario
from stories import placed, published, start_hosts

from loadmanager.core.history.schema import KINDS, Stream
from loadmanager.pipeline.replay.combinations import Combination, combinations
from loadmanager.pipeline.replay.events import Event
from loadmanager.pipeline.replay.frames import Frame, Frames, Refused
from loadmanager.pipeline.replay.measures import Column, Scores, scores_of
from loadmanager.pipeline.replay.segment_replay import SegmentReplay
from loadmanager.simulator.engine import simulate
from loadmanager.simulator.recording import WRITER, Recording
from loadmanager.simulator.scenario import Scenario
from loadmanager.simulator.strategies import Strategy, planner_for
from tests.testbed.faults.cluster import Cluster, make_config, play

Line = Mapping[str, Any]
Lines = Mapping[str, Column]
PAIR: Final = "threshold+least_long_term_message_rate"
UNEVEN: Final = scenario(
    brokers=[
        {"name": "b", "count": 6, "cores": 4.0, "background": QUIET,
         "cost": FREE | {"cpu_us_per_msg": 100.0}},
    ],
    step_s=10.0,
    duration_s=1800.0,
    load={"bundles": 48, "topics": 300, "msgs_in_per_s": 36_000.0, "message_bytes": 2000.0,
          "skew": {"kind": "log_normal", "sigma": 1.0}, "placed_on": ["b-1", "b-2", "b-3"]},
)  # fmt: skip
"""All begins on half of the brokers."""


def simulated(
    pair: str = PAIR, played: Scenario = UNEVEN, *, seed: int = 1, base_every_rounds: int = 5
) -> KeptHistory:
    """Return the history of a scenario that is played with a pair of strategies.

    Nobody may change that of `UNEVEN`: it is played once.
    """
    if played is UNEVEN:
        return _uneven(pair, seed, base_every_rounds)
    return _simulated(pair, played, seed, base_every_rounds)


@cache
def _uneven(pair: str, seed: int, base_every_rounds: int) -> KeptHistory:
    return _simulated(pair, UNEVEN, seed, base_every_rounds)


def _simulated(pair: str, played: Scenario, seed: int, base_every_rounds: int) -> KeptHistory:
    sink, planner = KeptHistory(WRITER), planner_for(played, Strategy.parse(pair))
    witness = Recording(played, planner, sink, base_every_rounds=base_every_rounds)
    simulate(played, planner, seed=seed, witness=witness)
    return sink


BRISK: Final[dict[str, Any]] = {
    "split": {"enabled": False},
    "leader": {"round_interval_s": 5.0, "tick_interval_s": 1.0, "settle_s": 0.0},
    "report": {"sample_interval_s": 1.0, "min_interval_s": 2.0, "max_interval_s": 10.0},
    "shedding": {
        "strategy": "threshold",
        "grace_period_s": 30.0,
        "settings": {"min_bytes_per_s": 0.0, "history": 0.5},
    },
    "planner": {"max_moves_per_round": 2},
}


def live(*, rounds: int = 12, observe: bool = False) -> Archive:
    """Return the history of real sidecars in virtual time, one of whose brokers is busy.

    Its leader moves bundles off it, a few each round. Nobody may change what is returned:
    it is played once.
    """
    archive = Archive()

    async def tell(cluster: Cluster) -> None:
        cluster.build = archive.kept
        await start_hosts(cluster, 3)
        boundaries, topics = await placed(cluster, 12)
        busy = cluster.server(boundaries.bundles[0])
        async with published(cluster, topics, every_s=0.5, times=lambda number, _: number + 1):
            await cluster.settled(boundaries.bundles)
            busy.cpu_fraction = 0.95
            done = archive.count("round")
            await cluster.until(lambda: archive.count("round") >= done + rounds, within_s=600.0)

    sections = {
        **BRISK,
        "shedding": {**BRISK["shedding"], "observe": observe},
        "history": {"base_every_rounds": 1},
    }
    play(tell, 0, config=make_config(**sections), checked=False)
    return archive


def leaders(archive: Archive | KeptHistory) -> list[KeptHistory]:
    sinks = [archive] if isinstance(archive, KeptHistory) else archive.sinks
    return [sink for sink in sinks if sink.count("round")]


def told(archive: Archive | KeptHistory) -> tuple[dict[tuple[str, int], Line], list[Line]]:
    reports = {(one["broker"], one["reported_at_ms"]): one for one in archive.lines("report")}
    kinds = [name for name, kind in KINDS.items() if kind.stream is Stream.ROUNDS]
    return reports, leaders(archive)[0].lines(*kinds)


def events(archive: Archive | KeptHistory) -> list[Event]:
    return list(events_of(*told(archive)))


def frames(found: Iterable[Event]) -> list[Frame | Refused]:
    return list(Frames().of(found))


def columns(rows: Sequence[Line]) -> dict[str, Column]:
    plain = {"refused", "note", "reproduced", "errors"}
    return {
        name: np.array([*(row[name] for row in rows), None], dtype=object)[:-1]
        if name in plain
        else np.array([row[name] for row in rows])
        for name in rows[0]
    }


def replayed(found: Iterable[Event], tried: Sequence[Combination], **how: Any) -> dict[int, Lines]:
    """Return the lines of each combination by its number, as columns; -1 are the recorded."""
    rows: dict[int, list[Line]] = defaultdict(list)
    for line in SegmentReplay(combinations=tried, **how).lines("segment", found):
        rows[line.combination].append(asdict(line))
    return {number: columns(each) for number, each in rows.items()}


def scores(found: Iterable[Event], *pairs: str, settings: Sequence[str] = ()) -> dict[str, Scores]:
    """Return the scores of pairs by their names, and of what was recorded by an empty one."""
    tried = combinations(pairs, settings)
    names = {one.number: one.name for one in tried} | {-1: ""}
    return {names[number]: scores_of(one) for number, one in replayed(found, tried).items()}
