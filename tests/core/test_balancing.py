import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.balancing import Balancing, BalancingMode, steered
from loadmanager.core.bounds import TIMES_END_MS
from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import Namespace
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.wire.policies import (
    decode_anti_affinity,
    decode_boundaries,
    encode_policies,
    encode_tenant,
    with_anti_affinity,
)
from loadmanager.core.wire.records import (
    DrainMark,
    decode_balancing,
    decode_drain_mark,
    encode_balancing,
    encode_drain_mark,
)

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
