"""What people ask of ``attach`` over HTTP: operations of sidecars, on the stored state.

The state is read by whichever controller leads, so any candidate takes these requests.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from loadmanager.adapters.clock import SystemClock
from loadmanager.admin.brokers import BalancingModes, Drains, DrainState, Marked
from loadmanager.core.balancing import Balancing, BalancingMode
from loadmanager.core.ids import BrokerId, belongs_to_a_broker
from loadmanager.ports.lookup import Missing, Unavailable, Unfit
from loadmanager.pulsar.answers import ClusterReader, PulsarCluster, addresses, read_owned
from loadmanager.pulsar.client import PulsarAdminError
from loadmanager.pulsar.held_brokers import Cordon, Cordons
from loadmanager.pulsar.observation import Observation
from loadmanager.pulsar.state import Part, State, StateUnusable

_RETRY_AFTER_S: Final = 10.0
_PAUSED: Final = re.compile(r"paused by (.*?) at (\d{4}-\S+?)(?:: (.*))?")


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
    _state: State | None = None
    _reader: ClusterReader | None = None
    _report: Callable[[str], None] = lambda _: None

    def begin(self, state: State, reader: ClusterReader, report: Callable[[str], None]) -> None:
        """``reader`` is for requests alone; ``report`` is called with each change."""
        self._state, self._reader, self._report = state, reader, report

    @property
    def begun(self) -> bool:
        return self._state is not None

    @property
    def state(self) -> State:
        if self._state is None:
            why = "this process makes no moves now; expected --balance"
            raise Unavailable(why, _RETRY_AFTER_S)
        return self._state

    @property
    def reader(self) -> ClusterReader:
        assert self._reader is not None  # noqa: S101 - given with the state
        return self._reader

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
            reader = self.reader
            url = addresses(reader.url)(broker)
            owned = [*await read_owned(reader.admin, url, cluster.name, broker)]
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
        control = self._control
        cordons = Cordons(control.state)
        with _unavailable():
            if await cordons.remove(broker):
                control.changed(f"{broker} takes bundles again", "", "")

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
