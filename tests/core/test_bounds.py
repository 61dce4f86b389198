"""Figures from outside: each is within its bound, or an error says where, what and what else."""

import json
import math
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core import bounds
from loadmanager.core.bounds import COUNT, RATE, TIME_MS, Bound
from loadmanager.core.errors import MalformedContent
from loadmanager.core.fields import Fields, parse_fields
from loadmanager.core.history.reading import read_line
from loadmanager.core.ids import Namespace, parse_broker, parse_bundle
from loadmanager.core.load import BrokerUrls, Registration
from loadmanager.core.memory import ROUND_MEMORY
from loadmanager.core.orders import decode_orders, decode_owned
from loadmanager.core.seed import read_seed
from loadmanager.core.snapshot.codec import decode_snapshot
from loadmanager.core.wire.policies import decode_boundaries
from loadmanager.core.wire.records import (
    decode_agent,
    decode_balancing,
    decode_drain_mark,
    decode_leader,
    decode_lock,
    decode_partitions,
)
from loadmanager.core.wire.reports import decode_loads, decode_registration, report_from
from loadmanager.core.wire.standby import decode_standby

BUNDLE = parse_bundle("t/n/0x00000000_0x80000000")
EVERY: dict[str, Bound] = {
    name: found for name, found in vars(bounds).items() if isinstance(found, Bound)
}


@pytest.mark.parametrize("bound", [COUNT, RATE, TIME_MS, bounds.AMOUNT, bounds.TIME_S])
@given(values=st.lists(st.one_of(st.integers(-2, 2**65), st.floats(), st.booleans()), max_size=4))
def test_what_holds_at_once_holds_one_by_one(bound: Bound, values: list[Any]) -> None:
    surely = bound.surely_hold(values)
    assert not surely or all(map(bound.holds, values))


@pytest.mark.parametrize("bound", EVERY.values())
def test_ends_of_a_bound_hold_at_once(bound: Bound) -> None:
    ends = [bound.least, min(bound.most, 2.0**62)]
    assert bound.surely_hold([int(one) if bound.whole else one for one in ends])
    assert bound.surely_hold([])
    assert not bound.surely_hold([*ends, math.nan])
    assert not bound.surely_hold([None])


numbers = st.one_of(
    st.integers(),
    st.integers(2**60, 2**65),
    st.sampled_from([10**400, -(10**400), 2**62, 2**63, 1e308, 4e307, 1e-300, 5e-324, -0.0]),
    st.floats(allow_nan=False, allow_infinity=False),
)
"""Any number that is legal in JSON."""


@pytest.mark.parametrize("name", EVERY)
def test_a_bound_holds_its_ends_and_nothing_beyond_them(name: str) -> None:
    bound = EVERY[name]
    assert bound.least < bound.most
    step: Callable[[float, float], float] = math.nextafter
    kind = int if bound.whole else float
    assert bound.holds(kind(bound.least))
    assert bound.holds(kind(bound.most))
    if bound.whole:
        assert not bound.holds(int(bound.least) - 1)
        assert not bound.holds(int(bound.most) + 1)
        assert not bound.holds(float(bound.least))
    else:
        assert not bound.holds(step(bound.least, -math.inf))
        assert not bound.holds(step(bound.most, math.inf))
    for foreign in (math.nan, math.inf, -math.inf, True, None, "1", 10**400, -(10**400)):
        assert not bound.holds(foreign)


def test_a_whole_number_that_is_an_amount_fits_into_64_bits() -> None:
    assert bounds.TOTAL.holds(2**63 - 1)
    assert not bounds.TOTAL.holds(2**63)


def test_sums_over_all_bundles_of_a_cluster_stay_within_the_bounds_of_sums() -> None:
    assert COUNT.most * 2**20 <= bounds.TOTAL_COUNT.most < bounds.MOST_INT64
    assert RATE.most * 2**20 < bounds.TOTAL.most
    assert math.isfinite((bounds.USAGE.most / bounds.LIMIT.least) ** 4)


RATES = ("msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut")
COUNTS = ("topics", "producerCount", "consumerCount", "cacheSize")
RESOURCES = ("cpu", "memory", "directMemory", "bandwidthIn", "bandwidthOut")
REPORT: dict[str, Any] = {
    "brokerId": "b1:8080",
    "lastUpdate": 1,
    "startTimestamp": 1,
    **{key: {"usage": 1.0, "limit": 100.0} for key in RESOURCES},
    "lastStats": {BUNDLE: dict.fromkeys(RATES, 1.0) | dict.fromkeys(COUNTS, 1)},
}
BY_BROKER = {key: {"b1:8080": 1} for key in ("usage", "highHits", "lowHits", "shedAtS")}
MEMORY: dict[str, Any] = {
    "shedder": {**BY_BROKER, "roundsOver": 1, "turn": 1},
    "movedAtS": {BUNDLE: 1.0},
    "startedAtMs": {"b1:8080": 1},
}
AVERAGE = {"maxSamples": 10, "numSamples": 1, **dict.fromkeys(RATES, 1.0)}
SNAPSHOT: dict[str, Any] = {
    "version": 1,
    "takenAtMs": 1,
    "epoch": 1,
    "brokers": {"b1:8080": REPORT},
    "ageSeconds": {"b1:8080": 1.0},
    "bundles": {BUNDLE: {"shortTermData": AVERAGE, "longTermData": AVERAGE, "topics": 1}},
    "runningLoad": {"b1:8080": {"load": 1.0, "bytesPerS": 1.0}},
    "memory": MEMORY,
    "membershipChangedSecondsAgo": 1.0,
    "departedSecondsAgo": [1.0],
}
STANDBY: dict[str, Any] = {
    "memory": MEMORY,
    "running": {"b1:8080": [1.0] * 3},
    "averages": {BUNDLE: [1.0] * 11},
    "departedAtS": {"b1:8080": 1.0},
    "splitRestsS": {BUNDLE: 1.0},
    "course": {"atMs": [1], **{key: [0.5] for key in ("gap", "largest", "bound")}},
}
SEED_HEAD = {"format": 1, "cluster": "c", "made_at_ms": 1, "since_ms": 1, "until_ms": 1}
SEED_BUNDLE: dict[str, Any] = {
    "bundle": BUNDLE,
    "long": [1.0] * 4,
    "samples": 1,
    "mean": [1.0] * 4,
    "hours": [1.0] * 168,
    "topics": 1,
}
SOMEBODY = Registration(
    broker=parse_broker("b:1"), urls=BrokerUrls(http_url=""), sidecar_url="", started_at_ms=0
)
LOADS: dict[str, Any] = {
    "version": 1,
    "lastUpdate": 1,
    "cpu": {"usage": 1.0, "limit": 2.0},
    "bundles": {"t/n": ["0x00000000_0x80000000"]},
    **{key: [1.0] for key in RATES},
    **{key: [1] for key in COUNTS},
}
HISTORY: dict[str, Any] = {
    "kind": "lost_reports",
    "cluster": "c",
    "writer": "w:1",
    "instance": "i",
    "why": "w",
    **dict.fromkeys(("schema", "seq", "at_ms", "records", "first_at_ms", "last_at_ms"), 1),
}

DOCUMENTS: dict[str, tuple[Any, Callable[[bytes], object]]] = {
    "report": (REPORT, lambda data: report_from(parse_fields("x", data))),
    "registry": ({"brokerId": "b:1", "startTimestamp": 1}, lambda d: decode_registration("x", d)),
    "loads": (LOADS, lambda data: decode_loads("x", data, SOMEBODY)),
    "own": ({"bundles": {"t/n": {"0x00000000_0x80000000": 1}}}, lambda d: decode_owned("x", d, 1)),
    "orders": (
        {"epoch": 1, "splits": {BUNDLE: {"algorithm": "a", "positions": [1]}}},
        lambda data: decode_orders("x", data),
    ),
    "lock": ({"httpUrl": "u", "loadmanager": {"epoch": 1}}, lambda d: decode_lock("x", d)),
    "leader": (
        {"brokerId": "b:1", "serviceUrl": "s", "loadmanager": {"epoch": 1}},
        lambda data: decode_leader("x", data),
    ),
    "self": ({"processId": 1, "registeredAtMs": 1, "takeOvers": 1}, lambda d: decode_agent("x", d)),
    "drain mark": ({"sinceMs": 1}, lambda data: decode_drain_mark("x", data)),
    "balancing": ({"mode": "active", "sinceMs": 1}, lambda data: decode_balancing("x", data)),
    "partitions": ({"partitions": 1}, lambda data: decode_partitions("x", data)),
    "boundaries": (
        {"bundles": {"boundaries": ["0x00000000", "0x80000000", "0xffffffff"], "numBundles": 2}},
        lambda data: decode_boundaries("x", Namespace("t/n"), data, 0),
    ),
    "standby": (STANDBY, lambda data: decode_standby("x", data)),
    "memory": (MEMORY, lambda data: ROUND_MEMORY.read(parse_fields("x", data))),
    "snapshot": (SNAPSHOT, lambda data: decode_snapshot("x", data)),
    "seed's head": (
        SEED_HEAD,
        lambda data: read_seed("x", [data, json.dumps(SEED_BUNDLE).encode(), b'{"bundles":1}'], 0),
    ),
    "seed's bundle": (
        SEED_BUNDLE,
        lambda data: read_seed("x", [json.dumps(SEED_HEAD).encode(), data, b'{"bundles":1}'], 0),
    ),
    "history": (HISTORY, lambda data: read_line("x", data)),
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [found for key, one in value.items() for found in places(one, (*path, key))]
    if isinstance(value, list):
        return [found for key, one in enumerate(value) for found in places(one, (*path, key))]
    return [path] if isinstance(value, int | float) else []


def having(document: Any, path: tuple[Any, ...], value: Any) -> bytes:
    changed = json.loads(json.dumps(document))
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return json.dumps(changed).encode()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_samples_of_documents_are_read(name: str) -> None:
    document, read = DOCUMENTS[name]
    assert places(document)
    read(json.dumps(document).encode())


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("name", DOCUMENTS)
@given(data=st.data())
def test_any_value_is_taken_or_an_error_that_says_where_and_so_are_any_bytes(
    name: str, data: st.DataObject
) -> None:
    document, read = DOCUMENTS[name]
    path = data.draw(st.sampled_from(places(document)))
    told = "nothing; expected nothing"
    try:
        read(having(document, path, data.draw(numbers)))
    except MalformedContent as error:
        told = str(error)
    assert "; expected " in told
    assert len(told) < 600
    # What holds the figure may be spoilt, too.
    spoilt = having(document, path[: data.draw(st.integers(1, len(path)))], data.draw(values))
    for content in (spoilt, data.draw(st.binary(max_size=200))):
        for form in (content, zlib.compress(content)):
            with suppress(MalformedContent):
                read(form)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_figure_anywhere_is_taken_beyond_every_bound(name: str) -> None:
    document, read = DOCUMENTS[name]
    for path in places(document):
        for value in (10**400, 1e308, -1e308):
            # Only the hour that is read of a week's profile is looked at.
            if path[0] == "hours" and path[1] != 0:
                continue
            with pytest.raises(MalformedContent):
                read(having(document, path, value))


def test_a_plan_that_names_no_broker_is_refused() -> None:
    with pytest.raises(MalformedContent, match="= 1; expected text"):
        ROUND_MEMORY.read(Fields("x", {"shedder": {"planned": {BUNDLE: 1}}}))


@pytest.mark.parametrize("data", [b'{"epoch":1e999}', b'{"epoch":NaN}', b'{"epoch":-Infinity}'])
def test_infinities_are_no_figures(data: bytes) -> None:
    with pytest.raises(MalformedContent):
        decode_orders("x", data)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ([1e300, 1.0, 1.0], "running.b:1.0 = 1e+300; expected a finite number"),
        ([1e14, 1.0, 1.0], f"expected first {TIME_MS.expected}"),
    ],
)
def test_the_state_of_a_former_leader_has_bounds(row: list[float], told: str) -> None:
    packed = zlib.compress(json.dumps({"memory": {}, "running": {"b:1": row}}).encode())
    with pytest.raises(MalformedContent) as raised:
        decode_standby("x", packed)
    assert told in str(raised.value)
    counts = [1.0, 1.0, 2.0**41, *([1.0] * 8)]
    packed = zlib.compress(json.dumps({"memory": {}, "averages": {BUNDLE: counts}}).encode())
    with pytest.raises(MalformedContent, match="third a whole number"):
        decode_standby("x", packed)
