"""A leader's rounds without any I/O: reports come in, a view is made, moves are planned.

``python leader_round.py BROKERS SHAPE STRATEGY`` does it in a fresh process and prints how
much memory that took at most.
"""

import json
import re
import resource
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from synthetic_cluster import NOW_S, SHAPES, SyntheticBroker, synthetic_brokers

from loadmanager.core import znodes
from loadmanager.core.cluster import ClusterView
from loadmanager.core.load import registration_of
from loadmanager.core.load_tracker import LoadTracker
from loadmanager.core.memory import RoundMemory
from loadmanager.core.placement import JointPlacement
from loadmanager.core.planner import Plan, Planner
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.shedding import JointShedder, ThresholdShedder
from loadmanager.core.wire.reports import decode_loads, encode_loads

THRESHOLD: Final = Planner(shedder=ThresholdShedder(min_bytes_per_s=0.0))
JOINT: Final = Planner(
    shedder=JointShedder(),
    placement=JointPlacement(),
    settings=PlannerSettings(moves_per_round=1_000_000, moves_per_hour=1_000_000),
)
"""With no number of moves to bound it, as where the configuration gives none."""

STRATEGIES: Final = {"threshold": THRESHOLD, "joint": JOINT}
CHANGED_EVERY = 10
"""One broker in so many has a new report in each round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTimes:
    """How long the parts of one round took, in milliseconds on the clock.

    ``decode`` is what reading the changed reports takes. A leader has done that before
    its round begins, whenever a watch told of one, so it is not in `round_ms`.
    """

    decode_ms: float
    take_ms: float
    view_ms: float
    plan_ms: float
    cpu_ms: float

    @property
    def round_ms(self) -> float:
        return self.take_ms + self.view_ms + self.plan_ms


class LeaderRounds:
    def __init__(self, brokers: Iterable[SyntheticBroker], planner: Planner = THRESHOLD) -> None:
        self.planner = planner
        self.tracker = LoadTracker(weights=self.planner.weights)
        self._changing: list[SyntheticBroker] = []
        for number, broker in enumerate(brokers):
            self.tracker.report(broker.report(), 0.0)
            if number % CHANGED_EVERY == 0:
                self._changing.append(broker)
        self.tracker.sample()

    def round(self, grown_by: float) -> tuple[RoundTimes, ClusterView, Plan]:
        """Do one round in which the changed reports have ``grown_by`` times the traffic.

        It begins with the memory of a new leader, so that all rounds have the same to do.
        """
        published = [one.report(grown_by=grown_by) for one in self._changing]
        contents = [encode_loads(one) for one in published]
        clock_s = [time.perf_counter()]
        reports = [
            decode_loads(znodes.LOADS, content, registration_of(one))
            for one, content in zip(published, contents, strict=True)
        ]
        clock_s.append(time.perf_counter())
        cpu_s = time.thread_time()
        for report in reports:
            self.tracker.report(report, NOW_S / 2)
        clock_s.append(time.perf_counter())
        view = self.tracker.view(NOW_S)
        clock_s.append(time.perf_counter())
        plan = self.planner.round(view, RoundMemory(), np.random.default_rng(1))
        clock_s.append(time.perf_counter())
        decode, take, see, decide = (1000 * float(each) for each in np.diff(clock_s))
        cpu_ms = 1000 * (time.thread_time() - cpu_s)
        times = RoundTimes(
            decode_ms=decode, take_ms=take, view_ms=see, plan_ms=decide, cpu_ms=cpu_ms
        )
        return times, view, plan


def _peak_bytes() -> int:
    """Return the most memory this process ever had resident.

    ``getrusage`` of a process on Linux begins with what its parent had when it forked.
    """
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s*(\d+) kB", status.read_text()) if status.exists() else None
    if found:
        return 1024 * int(found[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _main(brokers: str, wanted: str, strategy: str) -> None:
    before = _peak_bytes()
    shape = next(one for one in SHAPES if one == wanted)
    rounds = LeaderRounds(synthetic_brokers(int(brokers), shape), STRATEGIES[strategy])
    moves = [len(rounds.round(1 + number / 10)[2].moves) for number in range(3)]
    told = {"imports_peak_bytes": before, "peak_bytes": _peak_bytes(), "moves": moves}
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    _main(*sys.argv[1:])
