"""Brokers that take no part in moves: those that flap or did not serve, and those cordoned.

They are cordoned, and moves are paused, by commands and over HTTP: whichever controller leads reads
the stored state, so any candidate takes these requests.
"""

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, Literal

from pydantic import BaseModel, StrictInt

from loadmanager.adapters.clock import SystemClock
from loadmanager.admin.brokers import BalancingModes, Drains, DrainState, Marked
from loadmanager.core.balancing import Balancing, BalancingMode
from loadmanager.core.ids import BrokerId, BundleId, belongs_to_a_broker
from loadmanager.core.policies import open_to
from loadmanager.ports.lookup import Conflict, Missing, Unavailable, Unfit
from loadmanager.pulsar.answers import ClusterReader, PulsarCluster, addresses, read_owned
from loadmanager.pulsar.client import PulsarAdminError
from loadmanager.pulsar.observation import Observation
from loadmanager.pulsar.state import Part, State, StateUnusable

# Time without moves to or from a target that owned a bundle without serving it.
NOT_SERVED_S: Final = 3600.0
# Time within which a broker that joins, leaves or restarts again is held by name.
FLAPS_WITHIN_S: Final = 3600.0


@dataclass(slots=True)
class Changes:
    """When each broker joined, left or restarted; times are of one monotonic clock.

    The first time within an hour the whole cluster settles: it may be a rolling restart. After that
    only moves to and from the broker are held, for twice as long each time.
    """

    settle_s: float
    _brokers: frozenset[BrokerId] | None = None
    _times_s: dict[BrokerId, list[float]] = field(default_factory=dict)

    def listed(self, brokers: Collection[BrokerId], now_s: float) -> None:
        former, self._brokers = self._brokers, frozenset(brokers)
        if former is None:
            return
        for broker in former ^ self._brokers:
            if broker not in former and self._times_s.get(broker):
                self._times_s[broker][-1] = now_s
            else:
                self.restarted(broker, now_s)

    def restarted(self, broker: BrokerId, now_s: float) -> None:
        times_s = self._times_s.get(broker, [])
        self._times_s[broker] = [*(one for one in times_s if one > now_s - FLAPS_WITHIN_S), now_s]

    @property
    def last_s(self) -> float:
        first = (times_s[0] for times_s in self._times_s.values() if len(times_s) == 1)
        return max(first, default=float("-inf"))

    def lost(self, now_s: float) -> tuple[BrokerId, ...]:
        return tuple(
            broker
            for broker, times_s in sorted(self._times_s.items())
            if broker not in (self._brokers or ()) and times_s[-1] > now_s - FLAPS_WITHIN_S
        )

    def held(self, now_s: float) -> Mapping[BrokerId, str]:
        held: dict[BrokerId, str] = {}
        for broker, times_s in self._times_s.items():
            hold_s = min(self.settle_s * 2.0 ** (len(times_s) - 1), FLAPS_WITHIN_S)
            left_s = times_s[-1] + hold_s - now_s
            if len(times_s) > 1 and left_s > 0:
                what = f"it joined, left or restarted {len(times_s)} times within an hour"
                held[broker] = f"{what}: nothing moves to or from it for {left_s:.0f} s"
        return held


class _Targets(BaseModel):
    targets: dict[str, tuple[StrictInt, str]]


@dataclass(slots=True)
class HeldTargets:
    """Targets that owned a bundle without serving it: until when and why, or until cleared."""

    state: State
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    _known: dict[str, tuple[int, str]] = field(default_factory=dict)
    _added: dict[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def held(self) -> Mapping[BrokerId, str]:
        now_ms = self.wall_ms()
        return {
            BrokerId(broker): f"{why}; attach --clear-target {broker} lets it take part again"
            for broker, (until_ms, why) in {**self._known, **self._added}.items()
            if until_ms > now_ms
        }

    def add(self, broker: BrokerId, why: str) -> None:
        self._added[broker] = self.wall_ms() + round(1000 * NOT_SERVED_S), why

    async def refresh(self) -> None:
        expected = "the targets that attach --balance stored; remove it, and all brokers take part"
        found = await self.state.stored(Part.TARGETS, _Targets, expected)
        stored = {} if found is None else found.targets
        # None is held for longer from now on, also where the clock was set back.
        last_ms = self.wall_ms() + round(1000 * NOT_SERVED_S)
        self._known = {name: (min(one, last_ms), why) for name, (one, why) in stored.items()}
        if self._added or self._known != stored:
            self._known |= self._added
            await self._store()
            self._added.clear()

    async def clear(self, broker: str) -> bool:
        await self.refresh()
        known = self._known.pop(broker, None) is not None
        if known:
            await self._store()
        return known

    async def _store(self) -> None:
        now_ms = self.wall_ms()
        self._known = {name: one for name, one in self._known.items() if one[0] > now_ms}
        await self.state.keep(Part.TARGETS, json.dumps({"targets": self._known}))


class Cordon(BaseModel, frozen=True):
    """Why a broker takes no bundles; it is emptied, too, if it is to ``drain``."""

    drain: bool
    since_ms: StrictInt
    by: str
    reason: str = ""


class _Cordons(BaseModel):
    format: Literal[1] = 1
    brokers: dict[str, Cordon] = {}


class Drained(BaseModel, frozen=True):
    """What a controller saw last on a draining broker: bundles left, and how many stay and why.

    ``since_ms`` is that of the mark: clocks of two hosts are not compared.
    """

    since_ms: StrictInt
    left: int
    stay: dict[str, int] = {}


class _Drains(BaseModel):
    format: Literal[1] = 1
    brokers: dict[str, Drained] = {}


@dataclass(slots=True)
class Cordons:
    """The brokers that take no bundles until they are uncordoned; a controller notes its drains.

    All methods but `marked` raise `StateUnusable`.
    """

    state: State
    trouble: str = ""
    _last: Mapping[BrokerId, Cordon] = field(default_factory=dict)
    _noted: _Drains = field(default_factory=_Drains)

    async def marked(self, cluster: PulsarCluster) -> PulsarCluster:
        """Return a cluster with its marks, the last known ones if ``trouble`` is why not."""
        try:
            self._last, self.trouble = await self.read(), ""
        except StateUnusable as error:
            self.trouble = str(error)
        return replace(
            cluster,
            cordoned=frozenset(self._last),
            draining=frozenset(broker for broker, one in self._last.items() if one.drain),
        )

    async def read(self) -> dict[BrokerId, Cordon]:
        return self._parsed(await self.state.text(Part.CORDONS))

    def _parsed(self, text: str | None) -> dict[BrokerId, Cordon]:
        expected = "the cordons of attach; remove it, and all brokers take bundles"
        found = self.state.parsed(Part.CORDONS, text, _Cordons, expected) or _Cordons()
        return {BrokerId(name): one for name, one in found.brokers.items()}

    async def put(self, cluster: PulsarCluster, broker: BrokerId, cordon: Cordon) -> Cordon:
        """Cordon a broker, for which ``cluster`` is read with its policies; return its mark.

        An equal mark, but for when, why and by whom, is kept. Raises `Missing`: there is no such
        broker; `Conflict`: no other one would take its bundles.
        """
        stands = cordon

        def edit(known: dict[BrokerId, Cordon]) -> None:
            nonlocal stands
            if broker not in cluster.brokers:
                names = ", ".join(cluster.brokers)
                raise Missing(f"{broker} is no broker of {cluster.name}; expected one of {names}")
            former = known.get(broker)
            if former is not None and former.drain is cordon.drain:
                stands = former
            else:
                _check_others(cluster, broker, known.keys())
                known[broker] = stands = cordon

        await self._change(edit)
        return stands

    async def remove(self, broker: str) -> bool:
        gone: Cordon | None = None

        def edit(known: dict[BrokerId, Cordon]) -> None:
            nonlocal gone
            gone = known.pop(BrokerId(broker), None)

        await self._change(edit)
        return gone is not None

    async def note(self, leaving: Mapping[BrokerId, Mapping[BundleId, str]]) -> None:
        """Store what is left on draining brokers, if it is not what was stored before."""
        found = {
            str(broker): Drained(
                since_ms=self._last[broker].since_ms,
                left=len(left),
                stay=dict(Counter(why for why in left.values() if why)),
            )
            for broker, left in leaving.items()
        }
        if found != self._noted.brokers:
            self._noted = _Drains(brokers=found)
            await self.state.keep(Part.DRAINS, self._noted.model_dump_json())

    async def drained(self, broker: str) -> Drained | None:
        found = await self.state.stored(Part.DRAINS, _Drains, "the drains of attach; remove it")
        return None if found is None else found.brokers.get(broker)

    async def _change(self, edit: Callable[[dict[BrokerId, Cordon]], None]) -> None:
        def edited(text: str | None) -> str:
            known = self._parsed(text)
            edit(known)
            cordons = _Cordons(brokers={str(name): one for name, one in known.items()})
            return cordons.model_dump_json()

        await self.state.change(Part.CORDONS, edited)


def _check_others(cluster: PulsarCluster, broker: BrokerId, known: Collection[BrokerId]) -> None:
    """Raises `Conflict`: no other broker takes bundles, or none that an isolation policy allows."""
    left = [one for one in cluster.brokers if one != broker and one not in known]
    if not left:
        why = f"no broker of {cluster.name} besides {broker} takes bundles"
        raise Conflict(f"{why}; add one, or uncordon another one before")
    policies = cluster.isolation
    for name in sorted(policies.isolation.keys() - policies.refused.keys()):
        every = open_to(policies, policies.isolation[name], cluster.brokers)
        serving = [one for one, takes in zip(cluster.brokers, every, strict=True) if takes]
        if broker in serving and not set(serving) & set(left):
            why = f"isolation policy {name} allows no other broker that takes bundles"
            raise Conflict(f"{why}; change it, or uncordon another one before")


_RETRY_AFTER_S: Final = 10.0
_PAUSED: Final = re.compile(r"paused by (.*?) at (\d{4}-\S+?)(?:: (.*))?", re.DOTALL)


def pause_text(by: str, reason: str = "") -> str:
    """Return what is stored for a pause, in one line."""
    at = datetime.now(tz=UTC).isoformat(timespec="seconds")
    text = f"paused by {by or 'somebody'} at {at}{reason and f': {reason}'}"
    return " ".join(text.split())


def pause_of(stored: str) -> Balancing | None:
    """Return the pause that `pause_text` describes, None if it describes none."""
    if (found := _PAUSED.fullmatch(stored)) is None:
        return None
    by, at, reason = found.groups("")
    since_ms = 0
    with suppress(ValueError):
        since_ms = round(1000 * datetime.fromisoformat(at).timestamp())
    return Balancing(mode=BalancingMode.PAUSED, since_ms=since_ms, by=by, reason=reason)


@dataclass(slots=True)
class Control:
    """What this process can change: nothing before `begin`, as one that only observes.

    ``balancing`` is as it was seen last, ``seen`` the last round of a controller that leads.
    """

    balancing: Balancing
    seen: Observation | None = None
    reader: ClusterReader = field(init=False)
    _report: Callable[[str], None] = field(init=False)
    _state: State | None = None

    def begin(self, state: State, reader: ClusterReader, report: Callable[[str], None]) -> None:
        """``reader`` is for requests alone; ``report`` is called with each change."""
        self._state, self.reader, self._report = state, reader, report

    @property
    def begun(self) -> bool:
        return self._state is not None

    @property
    def state(self) -> State:
        if self._state is None:
            why = "this process makes no moves now; expected --balance"
            raise Unavailable(why, _RETRY_AFTER_S)
        return self._state

    def changed(self, what: str, by: str, reason: str) -> None:
        text = f"{what}: asked over HTTP{by and f' by {by}'}{reason and f': {reason}'}"
        self._report(" ".join(text.split()))

    async def cluster(self) -> PulsarCluster:
        """Return it as it was seen last, or read it."""
        return await self.reader.read() if self.seen is None else self.seen.cluster

    async def bundles_left(self, cluster: PulsarCluster, broker: BrokerId) -> int:
        sample = None if self.seen is None else self.seen.samples.get(broker)
        if sample is not None:
            owned = [*sample.bundles]
        elif broker in cluster.brokers:
            url = addresses(self.reader.url)(broker)
            owned = [*await read_owned(self.reader.admin, url, cluster.name, broker)]
        else:
            owned = []
        return sum(not belongs_to_a_broker(one) for one in owned)


@contextmanager
def _unavailable() -> Iterator[None]:
    """Turn errors of the state and of Pulsar into `Unavailable`."""
    try:
        yield
    except (StateUnusable, PulsarAdminError) as error:
        raise Unavailable(str(error), _RETRY_AFTER_S) from None


class AttachModes(BalancingModes):
    def __init__(self, control: Control) -> None:
        self._control = control

    async def state(self) -> Balancing:
        if not self._control.begun:
            return self._control.balancing
        stored = await self._control.state.paused()
        if not stored:
            return Balancing()
        return pause_of(stored) or Balancing(mode=BalancingMode.PAUSED, reason=stored)

    async def put(self, mode: BalancingMode, *, by: str, reason: str) -> None:
        control, state = self._control, self._control.state
        if mode is BalancingMode.OBSERVING:
            why = "attach does not only observe while it balances; expected pause or resume"
            raise Unfit(f"{why}, or attach without --balance")
        with _unavailable():
            if mode is BalancingMode.ACTIVE:
                await state.resume()
                control.balancing = Balancing()
                control.changed("not paused any more", by, reason)
            elif await state.text(Part.PAUSED) is None:
                stored = pause_text(by, reason)
                await state.pause(stored)
                control.balancing = pause_of(stored) or Balancing(mode=mode)
                control.changed("paused: nothing moves until it is resumed", by, reason)


class AttachDrains(Drains):
    def __init__(self, control: Control) -> None:
        self._control = control

    async def unmark(self, broker: BrokerId) -> None:
        with _unavailable():
            if await Cordons(self._control.state).remove(broker):
                self._control.changed(f"{broker} takes bundles again", "", "")

    async def status(self, broker: BrokerId) -> DrainState:
        control = self._control
        cordons = Cordons(control.state)
        with _unavailable():
            mark, noted = (await cordons.read()).get(broker), await cordons.drained(broker)
            cluster = await control.cluster()
            if mark is None and broker not in cluster.brokers:
                raise Missing(f"{broker}: no such broker is registered or marked")
            # A controller has taken note of this drain, not of one before.
            drains = mark is not None and noted is not None and noted.since_ms == mark.since_ms
            if noted is None or not drains:
                left, stay = await control.bundles_left(cluster, broker), {}
            else:
                left, stay = noted.left, noted.stay
        return DrainState(
            broker=broker,
            registered=broker in cluster.brokers,
            draining=drains,
            marked=None if mark is None else Marked.model_validate(mark),
            bundles_left=left,
            stay=stay,
        )

    async def put(self, broker: BrokerId, *, by: str, reason: str, drain: bool) -> None:
        control = self._control
        cordons, since_ms = Cordons(control.state), SystemClock().wall_ms()
        mark = Cordon(drain=drain, since_ms=since_ms, by=by, reason=reason)
        with _unavailable():
            if await cordons.put(await control.reader.read(), broker, mark) is mark:
                what = f"{broker} is {'drained' if drain else 'cordoned'}, and takes no bundle"
                control.changed(what, by, reason)
