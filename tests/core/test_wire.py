import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.averages import Average, BundleAverages, Running
from loadmanager.core.balancing import Balancing, BalancingMode, steered
from loadmanager.core.bounds import TIMES_END_MS
from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import MalformedContent
from loadmanager.core.fields import parse_fields, to_json
from loadmanager.core.hashing import FULL_RANGE_END
from loadmanager.core.ids import BrokerId, BundleId, Namespace, bundle_id
from loadmanager.core.load import (
    BrokerUrls,
    BundleStats,
    LoadReport,
    ResourceUsage,
    registration_of,
)
from loadmanager.core.memory import Memory, RoundMemory
from loadmanager.core.optimality import BalancePoint
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.rates import Rates
from loadmanager.core.wire.policies import (
    decode_anti_affinity,
    decode_boundaries,
    encode_boundaries,
    encode_policies,
    encode_tenant,
    with_anti_affinity,
)
from loadmanager.core.wire.records import (
    DrainMark,
    LeaderRecord,
    LockRecord,
    decode_balancing,
    decode_drain_mark,
    decode_leader,
    decode_lock,
    decode_partitions,
    encode_balancing,
    encode_drain_mark,
    encode_leader,
    encode_lock,
    encode_partitions,
)
from loadmanager.core.wire.reports import (
    decode_loads,
    decode_registration,
    encode_loads,
    encode_registration,
    report_from,
    report_to_json,
)
from loadmanager.core.wire.standby import Standby, decode_standby, encode_standby

NAMESPACE = Namespace("t/n")
texts = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20)
brokers = st.integers(1, 65535).map(lambda port: BrokerId(f"broker-{port}.example:{port}"))
numbers = st.floats(0, 1e12, allow_subnormal=False)
counts = st.integers(0, 2**40)
urls = st.builds(BrokerUrls, texts.filter(bool), texts, texts, texts)
listeners = st.dictionaries(texts, urls, max_size=3)
bundles = st.integers(0, 2**27).map(lambda at: bundle_id(NAMESPACE, at * 16, at * 16 + 16))
few = st.frozensets(bundles, max_size=2)
maybe = st.none() | numbers
limits = st.floats(0.001, 1e12)
usages = st.none() | st.builds(ResourceUsage, numbers, limits, mean=maybe, variance=maybe)
stats = st.builds(BundleStats, *[numbers] * 4, *[counts] * 4)
reports = st.builds(
    LoadReport,
    broker=brokers,
    urls=urls,
    sidecar_url=texts,
    reported_at_ms=counts,
    started_at_ms=counts,
    version=texts,
    **dict.fromkeys(("cpu", "memory", "direct_memory", "bandwidth_in", "bandwidth_out"), usages),
    **dict.fromkeys(("persistent_topics", "non_persistent_topics", "draining"), st.booleans()),
    bundles=st.dictionaries(bundles, stats, max_size=4),
    gains=few,
    losses=few,
    broker_class=texts,
    protocols=st.dictionaries(texts, texts, max_size=2),
    advertised_listeners=listeners,
)
locks = st.builds(
    LockRecord, urls=urls, broker=brokers, epoch=counts, disabled=st.booleans(), listeners=listeners
)
leaders = st.builds(
    LeaderRecord, broker=brokers, service_url=texts, sidecar_url=texts, instance=texts, epoch=counts
)


def encode_report(report: LoadReport) -> bytes:
    return to_json(report_to_json(report))


def decode_report(where: str, data: bytes) -> LoadReport:
    return report_from(parse_fields(where, data))


@given(st.data())
def test_what_is_written_is_read_back(data: st.DataObject) -> None:
    report, lock, leader = data.draw(reports), data.draw(locks), data.draw(leaders)
    registration = registration_of(report)
    assert decode_report("/r", encode_report(report)) == report
    assert decode_registration("/r", encode_registration(report)) == registration
    assert decode_loads("/l", encode_loads(report), registration) == report
    assert decode_lock("/l", encode_lock(lock)) == lock
    assert decode_leader("/e", encode_leader(leader)) == leader


@given(st.sets(st.integers(1, FULL_RANGE_END - 1), max_size=9), st.integers(0, 99))
def test_boundaries_survive_the_wire(inner: set[int], version: int) -> None:
    made = Boundaries(NAMESPACE, (0, *sorted(inner), FULL_RANGE_END), version)
    assert decode_boundaries("/p", NAMESPACE, encode_boundaries(made), version) == made


HALVES = ["0x00000000", "0x80000000", "0xffffffff"]


def test_other_policies_are_kept_when_boundaries_change() -> None:
    existing = b'{"bundles":{"numBundles":1,"x":2},"namespaceAntiAffinityGroup":"g"}'
    document = json.loads(encode_boundaries(Boundaries.even(NAMESPACE, 2), existing))
    assert document == {
        "bundles": {"numBundles": 2, "x": 2, "boundaries": HALVES},
        "namespaceAntiAffinityGroup": "g",
    }
    assert b"bundles" in encode_boundaries(Boundaries.even(NAMESPACE, 2), b'{"bundles":7}')


def _standby() -> Standby:
    rates = Rates(1.5, 2.5, 3.5, 4.5)
    averages = {
        BundleId(f"t/n/0x0000000{at}_0x0000000{at + 1}"): BundleAverages(
            Average(10, 3, Rates(bytes_in_per_s=float(at))), Average(1000, 30, rates), 7
        )
        for at in range(3)
    }
    memory = RoundMemory(
        shedder=Memory(usage={BrokerId("a:1"): 0.5}, rounds_over=2),
        moved_at_s={BundleId("t/n/0x00000000_0x00000001"): 12.5},
        started_at_ms={BrokerId("a:1"): 99},
    )
    return Standby(
        memory,
        averages,
        running={BrokerId("a:1"): Running(0.5, 1e6, 99)},
        departed_at_s={BrokerId("b:1"): 7.5},
        split_rests_s={BundleId("t/n/0x00000000_0x00000001"): 80.0},
        joint=b"\x1f\x8b what a strategy learned",
        course=(
            BalancePoint(at_ms=1_000, gap=0.5, largest=0.75, bound=0.5),
            BalancePoint(at_ms=31_000, gap=0.0, largest=0.5, bound=0.5),
        ),
    )


def test_the_leaders_state_survives_the_wire() -> None:
    state = _standby()
    assert decode_standby("/s", encode_standby(state)) == state


def test_a_state_of_a_leader_that_kept_no_course_has_none() -> None:
    document = json.loads(encode_standby(_standby()))
    del document["course"]
    assert decode_standby("/s", to_json(document)).course == ()
    document["course"] = {"atMs": [1, 2], "gap": [0.5, 0.5], "largest": [0.5], "bound": [0.5, 1.0]}
    with pytest.raises(MalformedContent, match=r"course.largest = \[0.5\]; expected 2 numbers"):
        decode_standby("/s", to_json(document))


def test_only_the_heaviest_averages_are_kept_when_they_must_be_few() -> None:
    state = decode_standby("/s", encode_standby(_standby(), most_bundles=1))
    assert list(state.averages) == ["t/n/0x00000002_0x00000003"]


@given(reports, st.floats(0, 1, exclude_max=True))
def test_a_truncated_report_is_refused(report: LoadReport, part: float) -> None:
    data = encode_report(report)
    with pytest.raises(MalformedContent):
        decode_report("/r", data[: int(part * len(data))])


CPU = {"usage": 1, "limit": 100}


def _report(**changed: Any) -> bytes:
    return json.dumps({"brokerId": "a:1", "webServiceUrl": "http://a:1", **changed}).encode()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"brokerId": "a"}, "/r: brokerId = 'a'; expected host:port"),
        ({"brokerId": 7}, "/r: brokerId = 7; expected text"),
        ({"loadReportType": "Other"}, "/r: loadReportType = 'Other'; expected LocalBrokerData"),
        ({"cpu": 5}, "/r: cpu = 5; expected an object"),
        ({"cpu": {"usage": -1, "limit": 100}}, "cpu.usage = -1; expected a finite number"),
        ({"cpu": {**CPU, "variance": -1}}, "cpu.variance = -1; expected a finite number"),
        ({"cpu": {**CPU, "mean": "x"}}, "cpu.mean = 'x'; expected a finite number"),
        ({"cpu": {"usage": 1, "limit": "x"}}, "cpu.limit = 'x'; expected a finite number"),
        ({"lastUpdate": -1}, "lastUpdate = -1; expected milliseconds since 1970"),
        ({"lastUpdate": 2.5}, "lastUpdate = 2.5; expected milliseconds since 1970"),
        ({"bundles": ["x"]}, "bundles = ['x']; expected tenant/namespace/0x"),
        ({"bundles": [1]}, "bundles = [1]; expected a list of texts"),
        ({"persistentTopicsEnabled": 1}, "persistentTopicsEnabled = 1; expected true or false"),
        ({"protocols": {"a": 1}}, "protocols.a = 1; expected text"),
        ({"brokerVersionString": "\ud800"}, r"= '\ud800'; expected text"),
        ({"lastStats": {"x": {}}}, "expected tenant/namespace/0x"),
        ({"bundles": ["y" * 200]}, "... (204 characters)"),
    ],
)
def test_the_error_names_field_found_and_expected(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(MalformedContent) as refused:
        decode_report("/r", _report(**changed))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"\xff", b"7", b"[" * 100_000, b'{"a":' + b"9" * 5000 + b"}"]
)
def test_what_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedContent):
        decode_leader("/e", data)


def test_a_report_of_pulsars_own_broker_decodes() -> None:
    data = json.dumps(
        {
            "webServiceUrl": "http://b-1:8080",
            "cpu": {"usage": -1.0, "limit": -1.0},
            "bundleStats": {"t/n/0x00000000_0x00000001": {"msgRateIn": 3, "new": 1}},
            "bundles": ["t/n/0x00000001_0x00000002"],
            "somethingNew": [1],
        }
    ).encode()
    report = decode_report("/r", data)
    assert (report.broker, report.sidecar_url, report.cpu) == ("b-1:8080", "", None)
    assert sorted(report.bundles) == ["t/n/0x00000000_0x00000001", "t/n/0x00000001_0x00000002"]
    assert report.totals.msgs_in_per_s == 3.0


def test_a_report_that_names_no_broker_is_refused() -> None:
    with pytest.raises(MalformedContent, match="http://host:port, as there is no brokerId"):
        decode_report("/r", b'{"webServiceUrl":"http://nowhere"}')
    with pytest.raises(MalformedContent, match="webServiceUrl is missing"):
        decode_report("/r", b"{}")


def test_a_lock_of_pulsars_own_broker_has_no_writer_and_no_epoch() -> None:
    lock = decode_lock("/l", b'{"nativeUrl":"pulsar://a:6650","disabled":true}')
    assert (lock.broker, lock.epoch, lock.disabled) == (None, 0, True)
    assert decode_lock("/l", encode_lock(lock)) == lock


def test_a_lock_without_any_address_is_refused() -> None:
    with pytest.raises(MalformedContent, match="at least one of nativeUrl"):
        decode_lock("/l", b'{"disabled":false}')


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ('{"bundles":{"boundaries":["0","1"]}}', "0x and eight hexadecimal digits"),
        ('{"bundles":{"boundaries":["0x00000000"]}}', "growing bounds"),
        ('{"bundles":{"boundaries":["0x00000000","0xffffffff"],"numBundles":3}}', "expected 1"),
        ("{}", "growing bounds"),
    ],
)
def test_boundaries_that_cannot_be_are_refused(document: str, message: str) -> None:
    with pytest.raises(MalformedContent, match=message):
        decode_boundaries("/p", NAMESPACE, document.encode(), 0)


@pytest.mark.parametrize(
    "document",
    [
        {"averages": {"x": [0] * 11}},
        {"averages": {"t/n/0x00000000_0x00000001": [1]}},
        {"averages": {"t/n/0x00000000_0x00000001": 7}},
        {"running": {"a:1": [1, 2]}},
        {"running": {"no broker": [1, 2, 3]}},
        {"departedAtS": {"no broker": 1}},
        {"splitRestsS": {"x": 1}},
        *({"joint": text} for text in ("no base64", "\x80")),
        {"joint": 7},
        {"memory": 7},
        {"memory": {"movedAtS": {"x": 1}}},
        {"memory": {"movedAtS": [1]}},
        {"memory": {"startedAtMs": {"a:1": "x"}}},
        {"memory": {"shedder": 7}},
        {"memory": {"shedder": {"turn": -1}}},
        {"memory": {"shedder": {"turnOrder": [1]}}},
        {"memory": {"shedder": {"usage": {"a:1": "x"}}}},
    ],
)
def test_a_state_of_another_form_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(MalformedContent):
        decode_standby("/s", zlib.compress(json.dumps(document).encode()))


def test_the_number_of_partitions_survives_the_wire() -> None:
    assert decode_partitions("/t", encode_partitions(7)) == 7
    with pytest.raises(MalformedContent, match="partitions = -1; expected a whole number"):
        decode_partitions("/t", b'{"partitions":-1}')


NS = Namespace("acme/prod")
TWO = Boundaries.even(NS, 2)


@pytest.mark.parametrize(
    ("mode", "observe", "shedding"),
    [
        (BalancingMode.ACTIVE, False, True),
        (BalancingMode.OBSERVING, True, True),
        (BalancingMode.PAUSED, False, False),
    ],
)
def test_a_mode_never_gives_a_duty(mode: BalancingMode, *, observe: bool, shedding: bool) -> None:
    got = steered(Planner(), mode).settings
    assert (got.observe, got.shedding) == (observe, shedding)
    held = Planner(settings=PlannerSettings(observe=True, shedding=False))
    got = steered(held, mode).settings
    assert (got.observe, got.shedding) == (True, False)


@pytest.mark.parametrize("mode", BalancingMode)
def test_a_mode_is_written_and_read_back(mode: BalancingMode) -> None:
    balancing = Balancing(mode=mode, since_ms=7, by="a", reason="b")
    assert decode_balancing("x", encode_balancing(balancing)) == balancing


def test_a_mode_that_is_none_is_refused() -> None:
    with pytest.raises(MalformedContent, match="active or observing or paused"):
        decode_balancing("x", b'{"mode":"asleep"}')


def test_new_policies_are_in_the_cluster_unless_they_say_otherwise() -> None:
    assert json.loads(encode_policies({}, TWO, "east"))["replication_clusters"] == ["east"]
    given = {"replication_clusters": ["west"], "bundles": "replaced"}
    got = json.loads(encode_policies(given, TWO, "east"))
    assert got["replication_clusters"] == ["west"]
    assert got["bundles"] == {
        "boundaries": ["0x00000000", "0x80000000", "0xffffffff"],
        "numBundles": 2,
    }
    assert json.loads(encode_tenant("east"))["allowedClusters"] == ["east"]


def test_a_group_is_put_beside_what_stands() -> None:
    content = encode_policies({"other": 1}, TWO, "east")
    grouped = with_anti_affinity("x", content, "fragile")
    assert decode_anti_affinity("x", grouped) == "fragile"
    assert decode_boundaries("x", NS, grouped, 0) == TWO
    assert json.loads(with_anti_affinity("x", grouped, "")) == json.loads(content)
    with pytest.raises(MalformedContent):
        with_anti_affinity("x", b"[]", "fragile")


@given(since_ms=st.integers(0, TIMES_END_MS - 1), by=st.text(), reason=st.text(), drain=...)
def test_a_mark_reads_back_as_it_was_written(
    since_ms: int, by: str, reason: str, *, drain: bool
) -> None:
    mark = DrainMark(since_ms=since_ms, by=by, reason=reason, drain=drain)
    assert decode_drain_mark("/m", encode_drain_mark(mark)) == mark


def test_what_is_missing_in_a_mark_is_nothing() -> None:
    assert decode_drain_mark("/m", b"{}") == DrainMark()


@pytest.mark.parametrize("data", [b"", b"[]", b'{"by":3}', b'{"sinceMs":"x"}', b'{"sinceMs":-1}'])
def test_spoilt_marks_are_refused_with_their_path(data: bytes) -> None:
    with pytest.raises(MalformedContent, match="/m"):
        decode_drain_mark("/m", data)
