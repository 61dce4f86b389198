"""The process of the Pulsar broker beside a sidecar: it is what the sidecar measures."""

import os
from collections.abc import AsyncIterator

import pytest
from fake_pulsar import FakePulsar

from loadmanager.adapters.host.neighbours import Listener
from loadmanager.adapters.pulsar_admin import Access, PulsarAdmin
from loadmanager.attach.observation import Rules
from loadmanager.core.ids import BrokerId
from loadmanager.pulsar_sidecar.broker import PulsarBroker


@pytest.fixture
async def broker(
    pulsar: FakePulsar, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[PulsarBroker]:
    monkeypatch.setattr("loadmanager.pulsar_sidecar.broker.FIRST_WINDOW_S", 0.1)
    admin = PulsarAdmin(Access(), known={one.name for one in pulsar.brokers})
    one = PulsarBroker(admin, pulsar.url, BrokerId(pulsar.brokers[0].name), Rules().why_stays)
    yield one
    await one.close()


async def test_it_is_the_one_that_listens_where_the_broker_is_asked(broker: PulsarBroker) -> None:
    assert (await broker.stats()).process_id == os.getpid()


async def test_one_that_ended_is_looked_for_anew_and_a_living_one_rarely(
    broker: PulsarBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    # No process has the first number; the second is this one's.
    answers = iter([Listener(2**22 + 1, "java"), Listener(os.getpid(), "java")])

    def listener_on(port: int) -> Listener | None:
        asked.append(port)
        return next(answers, None)

    monkeypatch.setattr("loadmanager.pulsar_sidecar.broker.listener_on", listener_on)
    found = [(await broker.stats()).process_id for _ in range(4)]
    assert found == [2**22 + 1, os.getpid(), os.getpid(), os.getpid()]
    assert asked == [int(broker.url.rpartition(":")[2])] * 2


async def test_it_is_unknown_where_nobody_is_seen_to_listen(
    broker: PulsarBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadmanager.pulsar_sidecar.broker.listener_on", lambda _: None)
    assert (await broker.stats()).process_id is None
