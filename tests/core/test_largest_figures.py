"""The largest figures that are allowed, and the largest nodes."""

import json
import zlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from largest_reports import idle_report, largest_report

from loadmanager.core.averages import LONG_SAMPLES, SHORT_SAMPLES, Average, BundleAverages
from loadmanager.core.bounds import COUNT, RATE, TIME_MS
from loadmanager.core.errors import MalformedContent
from loadmanager.core.explaining import Known, explain_broker, explain_bundle
from loadmanager.core.history.reading import read_line
from loadmanager.core.history.records import (
    Origin,
    RoundFacts,
    bundles_records,
    encode,
    record_of,
    report_record,
    round_records,
)
from loadmanager.core.history.schema import OPTIMALITY, SHADOW
from loadmanager.core.ids import BrokerId, BundleId, Namespace, bundle_id, parse_namespace
from loadmanager.core.load import (
    BrokerUrls,
    BundleStats,
    LoadReport,
    Registration,
    ResourceUsage,
    registration_of,
)
from loadmanager.core.load_tracker import LoadTracker
from loadmanager.core.memory import RoundMemory
from loadmanager.core.orders import Orders, decode_orders, decode_owned, encode_orders, encode_owned
from loadmanager.core.placement import PLACEMENTS
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import Mode, PlannerSettings
from loadmanager.core.rates import Rates
from loadmanager.core.shadow import Seen, Shadow, after_round
from loadmanager.core.shedding import SHEDDERS
from loadmanager.core.snapshot.codec import decode_snapshot, encode_snapshot
from loadmanager.core.snapshot.document import Snapshot
from loadmanager.core.wire.reports import decode_loads, encode_loads, encode_registration
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
            round=1,
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
    read_line("x", encode(record_of(OPTIMALITY, 0, found, epoch=1, round=1), ORIGIN, 1))
    parts = planner.divided(view, memory)
    assert parts is not None
    seen = Seen(view=view, divided=parts, optimality=found, moves=plan.moves)
    shadow = after_round(after_round(Shadow(), planner, seen, rng), planner, seen, rng)
    record = record_of(SHADOW, 0, shadow.rounds[-1], epoch=1, round=1, strategy="s")
    read_line("x", encode(record, ORIGIN, 1))
    known = Known(view=view, planner=planner, memory=memory, refusals=None)
    explain_broker(known, BROKERS[0], ())
    explain_bundle(known, view.bundles.names[0], ())
    planner.place(view, [bundle_id(NAMESPACE, 2**30, 2**31)], memory, rng)


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
def test_100000_bundles_through_a_round_and_a_hand_over(many: LoadTracker, shedder: Any) -> None:
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


JUTE_MAX_BUFFER = 0xFFFFF
"""The megabyte that ZooKeeper takes in one request."""

REGISTRATION = Registration(
    broker=BrokerId("b1:8080"),
    urls=BrokerUrls(http_url="http://b1:8080"),
    sidecar_url="http://b1:7750",
    started_at_ms=1,
)


def many_names(count: int) -> list[BundleId]:
    """Return the names of bundles whose ranges compress as badly as any."""
    drawn = np.random.default_rng(1).choice(2**31, count + 1, replace=False)
    bounds = np.sort(2 * drawn).tolist()
    namespace = Namespace("tenant/namespace")
    return [bundle_id(namespace, low, high) for low, high in pairwise(bounds)]


def loaded(bundles: list[BundleId]) -> LoadReport:
    """Return a report in which every bundle has figures of its own."""
    rng = np.random.default_rng(2)

    def stats() -> BundleStats:
        rates = rng.lognormal(5, 3, 4).tolist()
        counts = (int(rng.integers(most)) for most in (300, 300, 300, 10**8))
        return BundleStats(*rates, *counts).rounded()

    return LoadReport(
        broker=REGISTRATION.broker,
        urls=REGISTRATION.urls,
        sidecar_url=REGISTRATION.sidecar_url,
        started_at_ms=REGISTRATION.started_at_ms,
        reported_at_ms=2,
        cpu=ResourceUsage(120.0, 800.0),
        bundles={bundle: stats() for bundle in bundles},
        gains=frozenset(bundles),
    )


def test_the_nodes_of_a_broker_with_20_000_bundles_are_far_below_the_limit() -> None:
    bundles = many_names(20_000)
    report = loaded(bundles)
    loads = encode_loads(report)
    assert len(loads) < 0.8 * JUTE_MAX_BUFFER
    found = decode_loads("/l", loads, registration_of(report))
    assert found == report
    assert len(encode_registration(report)) < 1000
    tokens = {bundle: 10**10 + number for number, bundle in enumerate(bundles)}
    owned = encode_owned(tokens, bundles)
    assert len(owned) < 0.4 * JUTE_MAX_BUFFER
    assert decode_owned("/o", owned, 1).tokens == tokens
    heirs = {b: BrokerId(f"broker-{n % 30}.example.com:8080") for n, b in enumerate(bundles)}
    orders = Orders(7, frozenset(bundles), heirs)
    assert len(encode_orders(orders)) < 0.5 * JUTE_MAX_BUFFER
    assert decode_orders("/o", encode_orders(orders)) == orders


def _document(**changes: Any) -> bytes:
    found = {**json.loads(encode_loads(loaded(many_names(2)))), **changes}
    return json.dumps(found).encode()


def test_unknown_fields_of_loads_are_ignored_and_a_resource_may_have_mean_and_variance() -> None:
    usage = {"usage": 1.0, "limit": 2.0, "mean": 0.4, "variance": 0.01, "new": [1]}
    data = _document(cpu=usage, somethingNew={"a": 1}, msgRateInVariance=[1.0, 2.0])
    assert decode_loads("/l", data, REGISTRATION).cpu == ResourceUsage(1.0, 2.0, 0.4, 0.01)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "/l: version = 2; expected 1, the version this program reads"),
        ({"version": None}, "/l: version = None; expected a whole number"),
        ({"topics": [1]}, "/l: topics = [1]; expected 2 numbers"),
        ({"msgRateIn": [1.0, "x"]}, "/l: msgRateIn.1 = 'x'; expected a finite number"),
        ({"cacheSize": [1, 2.5]}, "/l: cacheSize.1 = 2.5; expected a whole number"),
        ({"bundles": {"t/n": ["0x2_0x1"]}}, "/l: bundles.'t/n/0x2_0x1'; expected tenant/"),
        ({"lastBundleLosses": {"t/n": 7}}, "/l: lastBundleLosses.t/n = 7; expected a list of"),
    ],
)
def test_loads_that_are_none_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MalformedContent) as refused:
        decode_loads("/l", _document(**changes), REGISTRATION)
    assert message in str(refused.value)


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """Return a small text that would be half a gigabyte unpacked."""
    packer = zlib.compressobj(9)
    chunk = b" " * 1_000_000
    packed = packer.compress(b'{"version":1,"epoch":1,') + b"".join(
        packer.compress(chunk) for _ in range(500)
    )
    return packed + packer.compress(b'"x":1}') + packer.flush()


@pytest.mark.parametrize(
    "decode",
    [
        lambda data: decode_loads("/x", data, REGISTRATION),
        lambda data: decode_orders("/x", data),
        lambda data: decode_owned("/x", data, 1),
        lambda data: decode_standby("/x", data),
    ],
)
def test_what_would_be_huge_unpacked_is_refused_before_it_is_unpacked(
    decode: Callable[[bytes], object], bomb: bytes
) -> None:
    assert len(bomb) < JUTE_MAX_BUFFER
    with pytest.raises(MalformedContent, match="at most"):
        decode(bomb)
    with pytest.raises(MalformedContent, match="cut off"):
        decode(zlib.compress(b'{"a": 1}')[:-3])
