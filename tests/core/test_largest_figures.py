"""The largest legal figures in every place, through everything that is computed from them."""

import json
import zlib
from typing import Any

import numpy as np
import pytest
from largest_reports import idle_report, largest_report

from loadmanager.core.averages import LONG_SAMPLES, SHORT_SAMPLES, Average, BundleAverages
from loadmanager.core.bounds import COUNT, RATE, TIME_MS
from loadmanager.core.explaining import Known, explain_broker, explain_bundle
from loadmanager.core.history.reading import read_line
from loadmanager.core.history.records import (
    Origin,
    encode,
    optimality_record,
    report_record,
    shadow_record,
)
from loadmanager.core.history.rounds import RoundFacts, bundles_records, round_records
from loadmanager.core.ids import BrokerId, bundle_id, parse_namespace
from loadmanager.core.load import LoadReport
from loadmanager.core.load_tracker import LoadTracker
from loadmanager.core.placement import PLACEMENTS
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import Mode, PlannerSettings
from loadmanager.core.rates import Rates
from loadmanager.core.round_memory import RoundMemory
from loadmanager.core.shadow import Seen, Shadow, after_round
from loadmanager.core.shedding import SHEDDERS
from loadmanager.core.snapshot.decoding import decode_snapshot
from loadmanager.core.snapshot.document import Snapshot
from loadmanager.core.snapshot.encoding import encode_snapshot
from loadmanager.core.wire.reports import decode_loads, encode_loads
from loadmanager.core.wire.standby import Standby, decode_standby, encode_standby

BROKERS = tuple(BrokerId(f"b{number}:8080") for number in range(5))
NAMESPACE = parse_namespace("t/n")
ORIGIN = Origin("c", BROKERS[0], "i")


def report(number: int, bundles: int) -> LoadReport:
    """Return the report of a broker: the last one is idle, the others as full as can be."""
    first = number * bundles
    names = [bundle_id(NAMESPACE, at * 16, at * 16 + 16) for at in range(first, first + bundles)]
    made = largest_report if number < len(BROKERS) - 1 else idle_report
    return made(BROKERS[number], names)


def tally_of(bundles: int) -> LoadTracker:
    tracker = LoadTracker()
    for number in range(len(BROKERS)):
        tracker.report(report(number, bundles), 0.0)
    for _ in range(3):
        tracker.sample()
    return tracker


def no_constants(text: str) -> Any:
    raise AssertionError(f"{text} in JSON")


@pytest.fixture(scope="module")
def few() -> LoadTracker:
    return tally_of(20)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("placement", sorted(set(PLACEMENTS.values()), key=str))
@pytest.mark.parametrize("shedder", sorted(set(SHEDDERS.values()), key=str))
def test_a_round_with_every_strategy_and_what_is_told_of_it(
    few: LoadTracker, shedder: Any, placement: Any, mode: Mode
) -> None:
    settings = PlannerSettings(mode=mode)
    planner = Planner(shedder=shedder(), placement=placement(), settings=settings)
    rng, memory = np.random.default_rng(1), RoundMemory()
    view = few.view(1000.0)
    for _ in range(3):
        plan = planner.round(view, memory, rng)
        told = RoundFacts(
            at_ms=0,
            epoch=1,
            number=1,
            outcome="moved",
            took_s=1.0,
            planner=planner,
            steering="active",
            memory=memory,
            averages=few.averages(),
        )
        for line in [*bundles_records(told, view), *round_records(told, view, plan, 1)]:
            read_line("x", encode(line, ORIGIN, 1))
        memory = plan.memory
        state = encode_standby(Standby(memory, few.averages(), few.running()))
        assert decode_standby("x", state).averages.keys() == few.averages().keys()
    found = planner.optimality(view, memory)
    assert found is not None
    read_line("x", encode(optimality_record(0, 1, 1, found), ORIGIN, 1))
    parts = planner.divided(view, memory)
    assert parts is not None
    seen = Seen(view=view, divided=parts, optimality=found, moves=plan.moves)
    shadow = after_round(after_round(Shadow(), planner, seen, rng), planner, seen, rng)
    read_line("x", encode(shadow_record(0, 1, 1, "s", shadow.rounds[-1]), ORIGIN, 1))
    known = Known(view=view, planner=planner, memory=memory, refusals=None)
    explain_broker(known, BROKERS[0], ())
    explain_bundle(known, view.bundles.names[0], ())
    planner.place(view, bundle_id(NAMESPACE, 2**30, 2**31), memory, rng)


def test_a_report_of_20000_bundles_is_written_and_read_as_it_was() -> None:
    full = report(0, 20_000)
    text = encode_loads(full)
    json.loads(zlib.decompress(text), parse_constant=no_constants)
    assert decode_loads("x", text, full) == full
    line = report_record(full, at_ms=0, due="age", interval_s=None, window_s=None)
    assert read_line("x", encode(line, ORIGIN, 1))["topics"] == 20_000 * int(COUNT.most)


@pytest.fixture(scope="module")
def many() -> LoadTracker:
    return tally_of(20_000)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("shedder", sorted(set(SHEDDERS.values()), key=str))
def test_100000_bundles_through_a_round_and_the_state_for_the_next_leader(
    many: LoadTracker, shedder: Any
) -> None:
    view = many.view(1000.0)
    plan = Planner(shedder=shedder()).round(view, RoundMemory(), np.random.default_rng(1))
    assert len(view.bundles.known) == 100_000
    assert np.isfinite(view.brokers.traffic).all()
    assert (view.brokers.connections >= 0).all()
    state = encode_standby(Standby(plan.memory, many.averages(), many.running()))
    assert decode_standby("x", state).running == many.running()


def test_a_snapshot_of_the_largest_figures_is_read_as_it_was_written() -> None:
    most = Rates(*[float(RATE.most)] * 4)
    snapshot = Snapshot(
        reports={BROKERS[number]: report(number, 3) for number in range(5)},
        taken_at_ms=int(TIME_MS.most),
        averages={
            bundle: BundleAverages(
                Average(SHORT_SAMPLES, SHORT_SAMPLES, most),
                Average(LONG_SAMPLES, LONG_SAMPLES, most),
                int(COUNT.most),
            )
            for bundle in report(0, 3).bundles
        },
    )
    text = encode_snapshot(snapshot)
    json.loads(text, parse_constant=no_constants)
    again = decode_snapshot("x", text)
    assert again.reports == snapshot.reports
    assert again.averages == snapshot.averages
