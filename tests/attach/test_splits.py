"""Bundles that are too large to even out by moves are cut, if that is asked for."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fake_pulsar import FakeBroker, FakePulsar, answer, lies_in, running

from loadmanager.core.hashing import position
from loadmanager.core.ids import parse_broker, parse_bundle, parse_full_topic
from loadmanager.core.rates import Rates
from loadmanager.pulsar.client import Access, PulsarAdmin
from loadmanager.pulsar.moves import BrokerQueries, split_bundle
from loadmanager.pulsar.observation import topic_loads
from loadmanager.pulsar.sampling import BrokerSample
from tests.attach.conftest import attach

WHOLE = "bench/hot/0x00000000_0xffffffff"


@pytest.fixture
def pulsar() -> Iterator[FakePulsar]:
    """Run three brokers; the first has one bundle with twelve topics, all alike."""
    topics = [f"persistent://bench/hot/topic-{number}" for number in range(12)]
    first = FakeBroker(
        owned=[WHOLE],
        topics={topic: [0.0, 0.0, 0.0, 0.0] for topic in topics},
        grows=dict.fromkeys(topics, (50.0, 100.0, 5_000.0, 10_000.0)),
    )
    with running(FakePulsar([first, FakeBroker(), FakeBroker()])) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def balance(pulsar: FakePulsar, *options: str) -> list[dict[str, Any]]:
    found = attach(pulsar, "--once", "--balance", "--json", "--state-dir", "state", *options)
    assert found.exit_code == 0, found.output
    told = [json.loads(line) for line in found.stdout.splitlines()]
    return [line["task"] for line in told if "task" in line]


def test_a_namespace_is_split_into_no_more_than_the_most_bundles(pulsar: FakePulsar) -> None:
    found = attach(
        pulsar, "--once", "--balance", "--state-dir", "state", "--split", "--most-bundles", "1"
    )
    assert pulsar.brokers[0].owned == [WHOLE]
    assert f"{WHOLE} is not split: bench/hot has 1 bundles; expected less than 1" in found.output


def test_one_bundle_with_all_traffic_is_cut_into_parts_that_are_alike(pulsar: FakePulsar) -> None:
    found = attach(pulsar, "--once", "--balance", "--json", "--state-dir", "state", "--split")
    told = [json.loads(line) for line in found.stdout.splitlines()]
    ordered, served = (line["task"] for line in told if "task" in line)
    first = next(number for number, line in enumerate(told) if "task" in line)
    windows = [line for line in told[:first] if "verdict" in line]
    assert [bool(one["splits"]) for one in windows] == [True] * 3
    assert (ordered["kind"], ordered["bundle"], served["state"]) == ("split", WHOLE, "serving")
    assert "3.00 times the mean" in ordered["why"]
    one, other = pulsar.brokers[0].owned
    assert one.partition("_0x")[0] == "bench/hot/0x00000000"
    assert other.endswith("_0xffffffff")
    counts = [
        sum(lies_in(topic, part) for topic in pulsar.brokers[0].topics) for part in (one, other)
    ]
    assert counts == [6, 6]


def test_rounds_of_splits_and_moves_even_it_out(pulsar: FakePulsar) -> None:
    for _ in range(6):
        balance(pulsar, "--split")
    counts = sorted(len(broker.topics) for broker in pulsar.brokers)
    assert sum(counts) == 12
    assert counts[-1] <= 5


@pytest.mark.parametrize(
    ("options", "busy_topics"),
    [((), 12), (("--split", "--exclude", "bench/*"), 12), (("--split",), 1)],
    ids=["not asked for", "excluded", "one busy topic"],
)
def test_nothing_is_cut_that_is(
    pulsar: FakePulsar, options: tuple[str, ...], busy_topics: int
) -> None:
    first = pulsar.brokers[0]
    first.grows = dict(list(first.grows.items())[:busy_topics])
    assert balance(pulsar, *options) == []
    assert first.owned == [WHOLE]


def test_what_would_be_cut_is_shown_without_acting(pulsar: FakePulsar) -> None:
    found = attach(pulsar, "--once", "--split")
    assert f"cut {WHOLE} at 0x" in found.output
    told = json.loads(attach(pulsar, "--once", "--split", "--json").stdout)
    assert told["splits"][0]["bundle"] == WHOLE
    assert pulsar.brokers[0].owned == [WHOLE]


def test_a_version_that_cannot_cut_there_says_so(pulsar: FakePulsar) -> None:
    pulsar.cuts = False
    _, ended = balance(pulsar, "--split")
    assert ended["state"] == "failed"
    assert "Unsupported namespace bundle split algorithm" in ended["reason"]


def test_splits_are_carried_out_one_after_the_other(pulsar: FakePulsar) -> None:
    balance(pulsar, "--split")
    first, under_way, most = pulsar.brokers[0], 0, 0

    async def slow(request: web.Request) -> web.Response:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.2)
        under_way -= 1
        del first.instead[request.path]
        return await answer(pulsar, first, request)

    for part in first.owned:
        first.instead[f"/admin/v2/namespaces/{part}/split"] = slow
    told = balance(pulsar, "--split")
    assert [one["state"] for one in told] == ["ordered", "serving"] * 2
    assert most == 1


def test_after_a_split_that_does_not_finish_no_other_begins(pulsar: FakePulsar) -> None:
    balance(pulsar, "--split")
    first = pulsar.brokers[0]
    for part in first.owned:
        first.tells(f"/admin/v2/namespaces/{part}/split", "", 204)
    one, other = list(first.owned)
    _, lost, held = balance(pulsar, "--split")
    assert {lost["bundle"], held["bundle"]} == {one, other}
    assert (lost["state"], held["state"]) == ("timed_out", "superseded")
    assert "does not serve both parts" in lost["reason"]
    assert held["reason"] == f"held: the split of {lost['bundle']} is not finished"


async def test_nothing_is_cut_at_a_mute_broker_or_one_without_it(pulsar: FakePulsar) -> None:
    admin = PulsarAdmin(Access(timeout_s=0.5), known={one.name for one in pulsar.brokers})
    first, second = (parse_broker(one.name) for one in pulsar.brokers[:2])
    bundle = parse_bundle(WHOLE)
    try:
        brokers = BrokerQueries(admin, lambda one: f"http://{one}", "research", list)
        assert (await split_bundle(brokers, second, bundle, 1 << 31)).state == "superseded"
        dead = BrokerQueries(admin, lambda _: "http://127.0.0.1:9", "research", list)
        outcome = await split_bundle(dead, first, bundle, 1 << 31)
    finally:
        await admin.close()
    assert (outcome.state, outcome.attempts) == ("failed", 0)
    assert "127.0.0.1:9" in outcome.reason
    assert pulsar.brokers[0].owned == [WHOLE]


def test_a_topic_on_the_bound_between_two_bundles_counts_for_the_upper_one() -> None:
    topic = "persistent://bench/hot/topic-1"
    at = position(parse_full_topic(topic), "crc32")
    lower, upper = (
        parse_bundle(f"bench/hot/{bounds}")
        for bounds in (f"0x00000000_0x{at:08x}", f"0x{at:08x}_0xffffffff")
    )
    sample = BrokerSample(window_s=1.0, bundles={}, topics={topic: Rates(1.0, 1.0)})
    assert topic_loads(sample, [lower, upper], 4.0, 0.0) == {lower: [], upper: [(at, 0.5)]}
    assert topic_loads(sample, [lower], 4.0, 0.0) == {lower: []}
