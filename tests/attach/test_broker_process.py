"""The Pulsar broker beside a sidecar: its process, and the traffic of its bundles."""

import itertools
import os
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from fake_pulsar import FakePulsar, lies_in

from loadmanager.adapters.host.processes import Listener
from loadmanager.core.ids import BrokerId, parse_bundle
from loadmanager.core.orders import SplitOrder
from loadmanager.ports.broker import BrokerRefused
from loadmanager.pulsar.client import Access, PulsarAdmin
from loadmanager.pulsar.observation import Rules
from loadmanager.pulsar.sidecar_term import PulsarBroker, find_cut


@pytest.fixture
async def broker(
    pulsar: FakePulsar, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[PulsarBroker]:
    monkeypatch.setattr("loadmanager.pulsar.sidecar_term.FIRST_WINDOW_S", 0.1)
    admin = PulsarAdmin(Access(), known={one.name for one in pulsar.brokers})
    one = PulsarBroker(admin, pulsar.url, BrokerId(pulsar.brokers[0].name), Rules().why_stays)
    yield one
    await one.close()


async def test_one_that_ended_is_looked_for_anew_and_a_living_one_rarely(
    broker: PulsarBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    # No process has the first number; the second is this one's.
    answers = iter([Listener(2**22 + 1, "java"), Listener(os.getpid(), "java")])

    def listener_on(port: int) -> Listener | None:
        asked.append(port)
        return next(answers)

    monkeypatch.setattr("loadmanager.pulsar.sidecar_term.listener_on", listener_on)
    found = [(await broker.stats()).process_id for _ in range(4)]
    assert found == [2**22 + 1, os.getpid(), os.getpid(), os.getpid()]
    assert asked == [int(broker.url.rpartition(":")[2])] * 2


async def test_it_may_be_unknown(broker: PulsarBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmanager.pulsar.sidecar_term.listener_on", lambda _: None)
    assert (await broker.stats()).process_id is None


@pytest.mark.parametrize("ends", [True, False])
async def test_what_a_reader_ever_received_is_no_traffic_of_the_window_in_which_it_ends_or_begins(
    broker: PulsarBroker, pulsar: FakePulsar, ends: bool
) -> None:
    """One such sample would lift the average of a thousand over the limit of a split."""
    first = pulsar.brokers[0]
    topic = next(iter(first.topics))
    labels = f'namespace="bench/skew",topic="{topic}",subscription="reader"'
    reader = f"pulsar_out_messages_total{{{labels}}} 1e8\npulsar_out_bytes_total{{{labels}}} 1e10"
    first.more_metrics = reader if ends else ""
    before = await broker.stats()
    first.more_metrics = "" if ends else reader
    after = await broker.stats()
    for stats in (before, after):
        for one in stats.bundles.values():
            assert one.msgs_per_s == pytest.approx(150.0)


async def test_a_cut_waits_for_the_page_after_one_that_is_repeated(
    broker: PulsarBroker, pulsar: FakePulsar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadmanager.pulsar.sidecar_term.WINDOW_S", 0.01)
    first, looks = pulsar.brokers[0], itertools.count()
    bundle = first.owned[0]
    topic = next(one for one in first.topics if lies_in(one, bundle))

    async def page(_: web.Request) -> web.Response:
        clock_s, counted = (5, 1_000) if next(looks) < 3 else (65, 7_000)
        labels = f'namespace="bench/skew",topic="{topic}"'
        lines = (
            f"jetty_stats_seconds{{}} {clock_s}\npulsar_in_messages_total{{{labels}}} {counted}\n"
        )
        return web.Response(text=lines)

    first.instead["/metrics/"] = page
    order = SplitOrder(algorithm="flow_or_qps_equally_divide")
    assert parse_bundle(bundle) in await broker.owned()
    # A single topic cannot be cut, and it was counted.
    assert await find_cut(broker, parse_bundle(bundle), order, broker.name) is None
    assert next(looks) == 4


async def test_a_broker_that_lists_nothing_all_at_once_is_unknown_and_then_empty(
    broker: PulsarBroker, pulsar: FakePulsar
) -> None:
    assert len(await broker.owned()) == 8
    pulsar.brokers[0].owned.clear()
    with pytest.raises(BrokerRefused, match="lists no bundle; expected about 8, as before"):
        await broker.owned()
    assert await broker.owned() == ()
