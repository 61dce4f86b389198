"""Moves of the extensible manager whose target ends: Pulsar may give the bundle back to its source.

The source has closed its topics then, and has not told their clients: it serves them to nobody
until it is told to release the bundle once more.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
from aiohttp import web
from fake_pulsar import EXTENSIBLE, FakeBroker, FakePulsar, refused
from waiting import eventually

from loadmanager.core.errors import LoadManagerError
from loadmanager.core.ids import parse_bundle
from loadmanager.pulsar.client import Access, PulsarAdmin
from loadmanager.pulsar.moves import Outcome, Unload
from tests.attach.conftest import move, mover

INACTIVE = "Not allowed unload namespace bundle to inactive destination broker"


@dataclass
class Transfer:
    """The unloads of one bundle at its source, where the target ends amid the first of them.

    Attributes:
        away_s: how long no broker serves the bundle.
        lands: the broker that serves it then: the source, whose topics stay closed, by default.
        ready: whether the target says all the while that it is ready.
        deaf: how many further orders have no answer and no effect.
        refused: whether the first order is refused at once, and not left without an answer.
        destinations: those of all orders, "" for none.
        stuck: whether its clients wait for topics that the source has closed.
    """

    pulsar: FakePulsar
    move: Unload
    away_s: float = 0.05
    lands: FakeBroker | None = None
    ready: bool = False
    refused: bool = False
    deaf: int = 0
    destinations: list[str] = field(default_factory=list)
    stuck: bool = False

    def __post_init__(self) -> None:
        self.source, self.target, self.third = self.pulsar.brokers
        path = f"/admin/v2/namespaces/{self.move.bundle}/unload"
        self.source.instead[path] = self.unload

    async def unload(self, request: web.Request) -> web.Response:
        """Answer an order: the first one with a destination takes the target down."""
        self.destinations.append(request.query.get("destinationBroker", ""))
        if not self.destinations[-1] and self.deaf:
            self.deaf -= 1
            await asyncio.sleep(30)
        if not self.destinations[-1]:
            self.stuck = False
            self.pulsar.hand_over(self.move.bundle, self.third)
            return web.Response(status=204)
        if len(self.destinations) > 1:
            return refused(409, INACTIVE)
        self.pulsar.brokers.remove(self.target)
        if not self.ready:
            self.target.tells("/admin/v2/brokers/ready", "", 503)
        self.pulsar.hand_over(self.move.bundle, None)
        asyncio.get_running_loop().call_later(self.away_s, self.land)
        await asyncio.sleep(0 if self.refused else 30)
        return refused(500, "Failed to close topics")

    def land(self) -> None:
        self.stuck = self.lands is None
        self.pulsar.hand_over(self.move.bundle, self.lands or self.source)


@pytest.fixture
async def admin(pulsar: FakePulsar) -> AsyncIterator[PulsarAdmin]:
    made = PulsarAdmin(Access(change_timeout_s=0.7), known={one.name for one in pulsar.brokers})
    yield made
    await made.close()


@pytest.fixture
def transfer(pulsar: FakePulsar) -> Transfer:
    pulsar.settings["loadManagerClassName"] = EXTENSIBLE
    return Transfer(pulsar, move(pulsar))


after_an_end = partial(mover, claims=False, look_s=0.2, return_s=5.0)


def freed(transfer: Transfer, outcome: Outcome) -> None:
    assert transfer.destinations[-1] == ""
    assert not transfer.stuck
    assert (outcome.state, outcome.owner) == ("landed_elsewhere", transfer.third.name)


async def test_a_bundle_that_is_given_back_to_its_source_is_released_once_more(
    admin: PulsarAdmin, transfer: Transfer
) -> None:
    outcome = await after_an_end(admin, transfer.pulsar).move(transfer.move)
    freed(transfer, outcome)
    assert outcome.attempts == 1
    assert f"{transfer.source.name} had it back" in outcome.reason


async def test_a_source_that_keeps_it_is_told_again(admin: PulsarAdmin, transfer: Transfer) -> None:
    transfer.deaf = 2
    admin.access = Access(change_timeout_s=3600.0)
    async with asyncio.timeout(20):
        outcome = await after_an_end(admin, transfer.pulsar).move(transfer.move)
    # More often on a machine that is slow at that moment.
    assert transfer.destinations[1:4] == [""] * 3
    assert (outcome.state, transfer.stuck) == ("landed_elsewhere", False)


@pytest.mark.parametrize(
    ("order_refused", "away_s"),
    [(True, 1.0), (False, 1.4)],
    ids=["its order was refused when it had left", "it is back long after the last attempt"],
)
async def test_so_is_one_where(
    admin: PulsarAdmin, transfer: Transfer, order_refused: bool, away_s: float
) -> None:
    transfer.refused, transfer.away_s = order_refused, away_s
    freed(transfer, await after_an_end(admin, transfer.pulsar).move(transfer.move))


async def test_so_is_one_ordered_once_at_most(admin: PulsarAdmin, transfer: Transfer) -> None:
    sent = 0

    def once() -> None:
        nonlocal sent
        sent += 1
        if sent > 1:
            raise LoadManagerError("another one leads")

    transfer.ready = True
    transfer.away_s = 1.0
    freed(transfer, await after_an_end(admin, transfer.pulsar).move(transfer.move, once))
    assert sent == 2


async def test_one_that_pulsar_gives_away_stays(admin: PulsarAdmin, transfer: Transfer) -> None:
    transfer.lands = transfer.third
    transfer.away_s = 1.0
    outcome = await after_an_end(admin, transfer.pulsar, look_s=0.8).move(transfer.move)
    assert (outcome.state, outcome.owner) == ("landed_elsewhere", transfer.third.name)
    assert "" not in transfer.destinations


async def test_what_nobody_has_is_explained(admin: PulsarAdmin, transfer: Transfer) -> None:
    transfer.away_s = 60.0
    moves = after_an_end(admin, transfer.pulsar, look_s=0.8, return_s=0.5)
    outcome = await moves.move(transfer.move)
    assert (outcome.state, outcome.owner) == ("timed_out", None)
    assert f"if {transfer.source.name} serves it again, unload it there" in outcome.reason


async def test_the_end_of_the_term_ends_the_wait(admin: PulsarAdmin, transfer: Transfer) -> None:
    transfer.away_s = 60.0
    moves = after_an_end(admin, transfer.pulsar, look_s=0.8, return_s=60.0)
    asyncio.get_running_loop().call_later(0.9, moves.over.set)
    async with asyncio.timeout(20):
        assert (await moves.move(transfer.move)).state == "timed_out"


async def test_targets_that_took_none_are_avoided(admin: PulsarAdmin, transfer: Transfer) -> None:
    transfer.ready = True
    moves = after_an_end(admin, transfer.pulsar)
    freed(transfer, await moves.move(transfer.move))
    other = replace(transfer.move, bundle=parse_bundle(transfer.source.owned[0]))
    transfer.pulsar.brokers.append(transfer.target)
    outcome = await moves.move(other)
    assert (outcome.state, outcome.attempts) == ("failed", 0)
    assert "a move to it did not arrive before" in outcome.reason
    transfer.target.tells("/admin/v2/brokers/ready", "", 503)
    await eventually(lambda: not moves.avoided)
    del transfer.target.instead["/admin/v2/brokers/ready"]
    outcome = await moves.move(other)
    assert (outcome.state, outcome.owner) == ("serving", transfer.target.name)


@pytest.mark.parametrize("status", [409, 500])
async def test_what_never_left_is_kept(admin: PulsarAdmin, transfer: Transfer, status: int) -> None:
    asked: list[str] = []

    async def refuse(request: web.Request) -> web.Response:
        asked.append(request.query.get("destinationBroker", ""))
        return refused(status, INACTIVE)

    transfer.source.instead[f"/admin/v2/namespaces/{transfer.move.bundle}/unload"] = refuse
    outcome = await after_an_end(admin, transfer.pulsar, look_s=0.8).move(transfer.move)
    assert outcome.state == "failed"
    assert transfer.move.bundle in transfer.source.owned
    assert set(asked) == {transfer.move.target}


async def test_modular_managers_give_nothing_back(admin: PulsarAdmin, transfer: Transfer) -> None:
    outcome = await after_an_end(admin, transfer.pulsar, claims=True).move(transfer.move)
    assert "" not in transfer.destinations
    assert outcome.state == "failed"
