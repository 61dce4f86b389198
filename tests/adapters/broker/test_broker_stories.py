"""What every `BrokerControl` of an in-memory broker promises, in process and over HTTP.

A story is a text of steps. Its epochs and tokens count from a czxid of a ZooKeeper that has elected
often: beyond 2**53, where doubles lose count. `` = `` says what a step gives, `` !`` how it is
refused. It begins at 100 s; ``loaded B`` stands for
``lease 1 110; @101; load B 1 7``.
"""

import asyncio
import math
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from loadmanager.adapters.broker.http_control import HttpBrokerControl
from loadmanager.core.hashing import position
from loadmanager.core.ids import parse_bundle, parse_topic, topic_from_parts
from loadmanager.core.load import BundleStats
from loadmanager.core.rates import Rates
from loadmanager.ports.broker import BrokerControl, BrokerRefused, StaleAgent
from loadmanager.reference_broker import changes as c
from loadmanager.reference_broker.memory_broker import MemoryBroker, Ticket
from tests.testbed.in_process import InProcessBroker

BASE = 2**60
NS = "a-b=c.d:e/n_1"
W, L, U = (
    parse_bundle(f"{NS}/{bounds}")
    for bounds in ("0x00000000_0xffffffff", "0x00000000_0x80000000", "0x80000000_0xffffffff")
)
BUNDLES = {"W": W, "L": L, "U": U}
LETTERS = {bundle: letter for letter, bundle in BUNDLES.items()}
TOPIC = parse_topic(f"persistent://{NS}/orders")
HALF = "U" if position(TOPIC, "murmur3") >= 0x80000000 else "L"


def change(one: c.Change) -> str:
    match one:
        case c.BundleLoaded():
            text = f"load {LETTERS[one.bundle]}{one.fencing_token - BASE} {one.agent_epoch - BASE}"
        case c.UnloadBegun():
            text = f"unload {LETTERS[one.bundle]}{one.fencing_token - BASE}"
        case c.LeaseGranted():
            text = f"lease {one.agent_epoch - BASE} {one.until_s:g}"
        case c.LeaseLost():
            text = f"lost {one.agent_epoch - BASE} {one.until_s:g}"
        case c.ServingEnded():
            text = (
                f"end {LETTERS[one.bundle]}{one.fencing_token - BASE} {one.agent_epoch - BASE} "
                f"{one.start_s:g}-{one.end_s:g} {one.why}"
            )
        case c.Started():
            text = "start"
        case _:
            text = "stop"
    return f"{text} @{one.at_s:g}"


@dataclass
class Player:
    control: BrokerControl
    process: Callable[[], MemoryBroker]
    changes: list[c.Change]
    clock: Any
    tickets: list[Ticket] = field(default_factory=list)
    background: list[asyncio.Task[str]] = field(default_factory=list)

    async def play(self, story: str) -> None:
        for step in " ".join(story.split()).split("; "):
            try:
                await self._play(step)
            except BaseException as error:
                error.add_note(f"at: {step}")
                raise

    async def _play(self, step: str) -> None:
        step, _, refused = step.partition(" !")
        if refused:
            said = re.sub(r"<(\d)>", lambda number: str(BASE + int(number[1])), refused)
            with pytest.raises(BrokerRefused, match=said) as raised:
                await self.do(step)
            assert isinstance(raised.value, StaleAgent) is said.startswith("agent epoch")
        else:
            command, compared, expected = f"{step} ".partition(" = ")
            told = await self.do(command)
            assert not compared or told == expected.strip()

    async def do(self, step: str) -> str:
        if step[0] == "@":
            self.clock.now_s = float(step[1:])
            return ""
        name, *words = step.split()
        command = getattr(self, f"_{name.rstrip('&')}")(*words)
        if name.endswith("&"):
            self.background.append(asyncio.create_task(command))
            async with asyncio.timeout(30):
                while not self._unloading():  # noqa: ASYNC110 - commands set no event
                    await asyncio.sleep(0.001)
            return ""
        return str(await command if asyncio.iscoroutine(command) else command)

    def _unloading(self) -> bool:
        try:
            self.process().abandon(self.process().begin_publish(TOPIC))
        except c.TopicNotServed:
            return True
        return False

    async def _loaded(self, bundle: str = "W") -> None:
        await self.play(f"lease 1 110; @101; load {bundle} 1 7")

    async def _lease(self, epoch: str, until: str, incarnation: str = "") -> str:
        state = await self.control.renew_lease(
            agent_epoch=BASE + int(epoch),
            until_s=None if until == "-" else float(until),
            incarnation={"": self.process().incarnation, "none": None}.get(
                incarnation, incarnation
            ),
        )
        assert state.clock_s == self.clock.now_s
        assert state.incarnation == self.process().incarnation
        return self._names(state.serving)

    def _names(self, serving: Any) -> str:
        return " ".join(f"{LETTERS[one]}{token - BASE}" for one, token in serving.items())

    async def _load(self, bundle: str, epoch: str, token: str) -> None:
        grant = BASE + int(epoch), BASE + int(token)
        await self.control.load(BUNDLES[bundle], agent_epoch=grant[0], fencing_token=grant[1])

    async def _unload(self, bundle: str, epoch: str, token: str) -> None:
        grant = BASE + int(epoch), BASE + int(token)
        await self.control.unload(BUNDLES[bundle], agent_epoch=grant[0], fencing_token=grant[1])

    def _again(self, bundle: str, epoch: str, token: str) -> None:
        """Unload once more while the first is under way, for which nothing is to be seen."""
        self.process().begin_unload(
            BUNDLES[bundle], agent_epoch=BASE + int(epoch), fencing_token=BASE + int(token)
        )

    def _pending(self) -> str:
        return str(sum(not one.done() for one in self.background))

    async def _done(self) -> None:
        async with asyncio.timeout(30):
            await self.background.pop()

    def _begin(self) -> None:
        self.tickets.append(self.process().begin_publish(TOPIC))

    def _finish(self) -> str:
        return self._outcome(lambda: self.tickets.pop(0), 1)

    def _abandon(self) -> None:
        self.process().abandon(self.tickets.pop(0))

    def _publish(self, topic: str = str(TOPIC)) -> str:
        return self._outcome(lambda: self.process().begin_publish(parse_topic(topic)), 100)

    def _outcome(self, begin: Callable[[], Ticket], payload_bytes: int) -> str:
        process = self.process()
        try:
            outcome = process.finish_publish(begin(), producer="p", payload_bytes=payload_bytes)
        except c.NoLease:
            return "no_lease"
        except c.TopicNotServed:
            return "not_served"
        assert outcome.clock_s == self.clock.now_s
        return self._names({outcome.bundle: outcome.fencing_token})

    async def _serving(self) -> str:
        return self._names(self.process().state().serving)

    def _held(self, bundle: str) -> bool:
        return self.process().serves(BUNDLES[bundle])

    def _expiry(self) -> float | None:
        return self.process().next_expiry_s

    async def _topics(self) -> str:
        counts = {one: stats.topics for one, stats in (await self.control.stats()).bundles.items()}
        return " ".join(f"{LETTERS[one]}{count}" for one, count in counts.items())

    def _recorded(self, count: str) -> str:
        return ", ".join(map(change, self.changes[-int(count) :]))

    def _changes(self) -> int:
        return len(self.changes)

    def _stop(self) -> None:
        self.process().stop()


def in_process(clock: Any, **options: Any) -> Player:
    changes: list[c.Change] = []
    fake = InProcessBroker(clock, on_change=changes.append, **options)
    return Player(fake, lambda: fake.process, changes, clock)


@pytest.fixture(params=["in_process", "http"])
async def player(
    request: pytest.FixtureRequest, clock: Any, serve_broker: Any
) -> AsyncIterator[Player]:
    if request.param == "in_process":
        yield in_process(clock)
        return
    async with serve_broker(clock) as served:
        control = HttpBrokerControl(served.url, timeout_s=30.0)
        yield Player(control, lambda: served.running, served.changes, clock)
        await control.close()


# A dot stands for a semicolon, which ends a step.
NO_LEASE, OVER = "has no valid lease. renew it", "is over. expected"
STORIES = {
    "a fresh broker serves nothing": """lease 1 - none =; topics =; expiry = None;
        publish = no_lease; recorded 9 = start @100""",
    "a load makes it serve under that token": """loaded; publish = W7; @102; publish = W7;
        lease 1 - none = W7; recorded 2 = lease 1 110 @100, load W7 1 @101""",
    "loading twice changes nothing": """loaded; publish = W7; changes = 3; load W 1 7; changes = 3;
        topics = W1; publish = W7""",
    "bundles are served side by side": """lease 1 110; load L 1 1; load U 1 2; unload L 1 1;
        lease 1 - none = U2""",
    "topics of another namespace": """loaded; publish persistent://t/other/orders = not_served""",
    "the halves of a split take over before their parent is gone": f"""loaded; load L 1 8;
        load U 1 8; publish = {HALF}8""",
    # Leases.
    "no lease, no load": f"load W 1 7 !{NO_LEASE}",
    "a lost lease ends everything when it ran out": """loaded; @109.999; publish = W7; @110;
        publish = no_lease; topics =; @115; lease 1 120 =;
        recorded 3 = lost 1 110 @110, end W7 1 101-110 lease_lost @110, lease 1 120 @115""",
    "a loss that is noticed late has its own time": """loaded; @115; serving =;
        recorded 2 = lost 1 110 @115, end W7 1 101-110 lease_lost @115""",
    "what a lost lease ended may be loaded again": """loaded; @120; lease 1 130 =; @121;
        publish = not_served; load W 1 7; publish = W7""",
    "a message begun in the lease is not taken after it": """loaded; @109.9; begin; @110.1;
        finish = no_lease""",
    "a renewal never shortens": "loaded; lease 1 105; lease 1 - none; expiry = 110.0",
    "a renewal that comes too late": "lease 1 100; expiry = None; changes = 1",
    "a lease by another clock is none": f"""lease 1 1e9 none =; lease 1 1e9 another =;
        lease 1 1e9 {"x" * 200} =; load W 1 7 !{NO_LEASE}""",
    "a renewal by another clock leaves the lease": """loaded; lease 1 1e9 another = W7; @110;
        publish = no_lease""",
    # Agents.
    "an older agent is stale": """loaded; lease 2 - none; lease 1 200 !agent epoch <1> is older than
        <2>; load W 1 9 !agent epoch; unload W 1 7 !agent epoch; serving = W7""",
    "a new agent extends only what it loaded": """loaded L; lease 2 130; load U 2 8; @109;
        serving = L7 U8; @110; serving = U8""",
    "a new agent does not inherit the longer lease": """loaded L; lease 2 105; load U 2 8; @106;
        serving = L7""",
    "a new agent takes over without a gap": """loaded; @102; lease 2 130; begin; @103; load W 2 8;
        finish = W8; recorded 2 = end W7 1 101-103 regranted @103, load W8 2 @103; @115;
        serving = W8""",
    # Unloading.
    "an idle bundle is unloaded at once": """loaded; @103; unload W 1 7; publish = not_served;
        lease 1 - none =; held W = False;
        recorded 2 = unload W7 @103, end W7 1 101-103 unloaded @103""",
    "unloading what is not loaded is fine": "unload W 1 1; changes = 1",
    "the other bundles outlive an unload": "loaded L; load U 1 8; unload L 1 7; serving = U8",
    "an unload ends with the last request in service": """loaded; begin; begin; unload& W 1 7;
        again W 1 7; publish = not_served; finish = W7; held W = True; pending = 1; @105; abandon;
        done; held W = False; recorded 2 = unload W7 @101, end W7 1 101-105 unloaded @105""",
    "a given-up request leaves an open bundle open": """loaded; begin; abandon; held W = True;
        unload W 1 7; held W = False""",
    "loading waits for an unload": """loaded; begin; unload& W 1 7;
        load W 1 8 !still being unloaded; load W 1 7 !is over; abandon; done""",
    "a lost lease ends an unload": """loaded; begin; unload& W 1 7; @111; topics =; done;
        finish = no_lease""",
    "a request of an earlier load does not count for a later": """loaded; begin; begin; @111;
        lease 1 130; load W 1 8; finish = not_served; abandon; topics = W0""",
    "a stop ends all and obeys nobody": """loaded; begin; @103; stop; finish = no_lease;
        lease 1 200 !stopping; recorded 2 = end W7 1 101-103 stopped @103, stop @103""",
    # Tokens.
    "an older token while a newer one is served": f"""loaded; load W 1 6 !token <6> {OVER} <7>;
        serving = W7; publish = W7""",
    "a refused load counts as seen": f"load W 1 7 !{NO_LEASE}; lease 1 110; load W 1 6 !{OVER}",
    "an unload ends its token and all below": f"""loaded; unload W 1 7;
        load W 1 7 !token <7> {OVER} <8>; load W 1 6 !token <6> {OVER} <8>; load W 1 8;
        serving = W8""",
    "an unload that overtook its load": f"""lease 1 110; unload W 1 7; load W 1 7 !{OVER};
        publish = not_served; load W 1 8; publish = W8""",
    "a lost lease brings no ended token back": f"""lease 1 110; unload W 1 7; @120; lease 1 130;
        load W 1 7 !{OVER}""",
    "nor does a newer agent": f"lease 1 110; unload W 1 7; lease 2 130; load W 2 7 !{OVER}",
    "an unload of an older grant leaves the newer": """loaded; unload W 1 6 !token <6> is older than
        <7>, which it is served under; serving = W7; load W 1 7; publish = W7""",
    "an unload of a newer token ends the older grant": f"""loaded; unload W 1 9; held W = False;
        load W 1 8 !{OVER}""",
    "an older unload of what is not served ends nothing newer": f"""lease 1 110; unload W 1 7;
        unload W 1 5; load W 1 7 !{OVER} <8>""",
    "an unload ends no token of another bundle": """lease 1 110; unload W 1 7; load L 1 7;
        serving = L7""",
}


@pytest.mark.parametrize("story", STORIES.values(), ids=list(STORIES))
async def test_in_process_and_over_http_alike(player: Player, story: str) -> None:
    await player.play(story)


async def test_health_and_traffic_are_told(player: Player) -> None:
    control, clock = player.control, player.clock
    await control.health(30.0)
    with pytest.raises(BrokerRefused, match=f"{W} is not served here") as refused:
        await control.topics(W)
    assert not isinstance(refused.value, StaleAgent)
    await player.play("lease 1 110; load W 1 7")
    assert await control.topics(W) == {}
    awkward = topic_from_parts("non-persistent", "a-b=c.d:e", "n_1", 'a/../"b"? ä%2F\n')
    clock.now_s = 101.0
    for topic in (TOPIC, TOPIC, awkward):
        ticket = player.process().begin_publish(topic)
        player.process().finish_publish(ticket, producer="p", payload_bytes=100)
    clock.now_s = 102.0
    # Slots of 0.2 s: those from 100.2 on cover 1.8 s up to now.
    stats, topics = await control.stats(), await control.topics(W)
    assert stats.window_s == 2.0
    rate: Any = pytest.approx(3 / 1.8)
    bytes_rate: Any = pytest.approx(300 / 1.8)
    assert stats.bundles == {
        W: BundleStats(topics=2, producers=1, msgs_in_per_s=rate, bytes_in_per_s=bytes_rate)
    }
    assert topics.keys() == {TOPIC, awkward}
    assert topics[TOPIC].msgs_in_per_s == pytest.approx(2 / 1.8)
    assert topics[awkward].bytes_per_s == pytest.approx(100 / 1.8)
    clock.now_s = 105.0
    assert (await control.topics(W))[TOPIC] == Rates()
    clock.now_s = 110.0
    assert (await control.stats()).bundles == {}
    with pytest.raises(BrokerRefused, match="is not served here"):
        await control.topics(W)


@pytest.mark.parametrize("number", [-1, 2**63])
async def test_epochs_and_tokens_have_63_bits(player: Player, number: int) -> None:
    for command in (player.control.load, player.control.unload):
        with pytest.raises(ValueError, match="agent_epoch"):
            await command(W, agent_epoch=number, fencing_token=1)
        with pytest.raises(ValueError, match="fencing_token"):
            await command(W, agent_epoch=1, fencing_token=number)


@pytest.mark.parametrize(
    ("until_s", "incarnation", "said"),
    [
        *((until_s, None, "until_seconds") for until_s in (math.nan, math.inf, -1.0)),
        *((1.0, text, "incarnation") for text in ("", "x" * 201)),
    ],
)
async def test_a_lease_that_is_none_is_a_mistake_of_the_caller(
    player: Player, until_s: float, incarnation: str | None, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        await player.control.renew_lease(agent_epoch=1, until_s=until_s, incarnation=incarnation)


def test_a_load_that_cannot_be_recorded_does_not_happen_and_a_loss_does(clock: Any) -> None:
    full = False

    def record(_change: c.Change) -> None:
        if full:
            raise OSError("disk full")

    broker = MemoryBroker(broker="b1:8080", incarnation="i", clock_s=clock, record=record)
    broker.renew_lease(agent_epoch=1, until_s=110.0, incarnation="i")
    broker.load(L, agent_epoch=1, fencing_token=7)
    full = True
    with pytest.raises(OSError, match="disk full"):
        broker.load(U, agent_epoch=1, fencing_token=7)
    assert (broker.serves(L), broker.serves(U)) == (True, False)
    assert (broker.serves(L, up_to_token=7), broker.serves(L, up_to_token=6)) == (True, False)
    clock.now_s = 111.0
    with pytest.raises(OSError, match="disk full"):
        broker.expire()
    assert not broker.serves(L)
    assert broker.next_expiry_s is None
