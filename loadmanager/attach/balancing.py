import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from time import monotonic
from typing import Final, Protocol

from loadmanager.adapters.pulsar_admin import (
    PulsarAdmin,
    PulsarAdminError,
    RequestFailed,
    RightMissing,
)
from loadmanager.attach.discovery import PulsarCluster, addresses, discover_at_any
from loadmanager.attach.dispatching import Dispatcher
from loadmanager.attach.mandate import Mandate
from loadmanager.attach.observation import GREEDY, Observation, Rules
from loadmanager.attach.observing import Observer
from loadmanager.attach.placing import NewNamespaces
from loadmanager.attach.pulsar_balancer import PulsarBalancer, switched_on
from loadmanager.attach.sampling import BrokerSample, Sampler
from loadmanager.attach.state import Course, StateUnusable, StoredBudget
from loadmanager.attach.strategy import Strategy
from loadmanager.core.bundle_task import BundleTask
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.ids import BrokerId
from loadmanager.core.move_limits import MoveBudget

_STALE_WINDOWS: Final = 3.0
_LEAST_STALE_S: Final = 30.0
_RESTORE_TRIES: Final = 3
_RESTORE_PAUSE_S: Final = 2.0


class Log(Protocol):
    def round(self, seen: Observation, held: str) -> None:
        """``held`` is why nothing may move now, "" if moves are allowed."""

    def task(self, task: BundleTask, why: str) -> None: ...

    def event(self, what: str) -> None: ...


class Stopped(LoadManagerError):
    """Balancing has to stop until an operator changes something; the message says what."""


@dataclass(slots=True)
class Balancer:
    """Balances one cluster until asked to stop.

    If the broker at ``url`` does not answer, the others are tried. For ``settle_s`` after a broker
    joined, left or restarted nothing moves. Maintenance windows are compared with the local time
    ``now``. ``course``, as ``log`` records it, is stored for the next controller.
    """

    admin: PulsarAdmin
    url: str
    rules: Rules
    budget: MoveBudget
    interval_s: float
    settle_s: float
    pulsar_balancer: PulsarBalancer
    log: Log
    stopping: asyncio.Event
    mandate: Mandate = field(default_factory=Mandate)
    now: Callable[[], datetime] = lambda: datetime.now(tz=UTC).astimezone()
    strategy: Strategy = GREEDY
    course: Course = field(default_factory=Course)
    _urls: tuple[str, ...] = ()
    _brokers: tuple[BrokerId, ...] = ()
    _changed_s: float = float("-inf")
    _observer: Observer = field(init=False)
    _new: NewNamespaces = field(init=False)
    _sampler: Sampler = field(init=False)
    _address: Callable[[BrokerId], str] = field(init=False)

    def __post_init__(self) -> None:
        self._address = addresses(self.url)
        self._observer = Observer(self.admin, self.strategy)
        self._new = NewNamespaces(self.admin)
        self._sampler = Sampler(self.admin, self._address, self.strategy.hosts)
        self._urls = (self.url,)

    async def run(self, cluster: PulsarCluster, rounds: int | None, *, take_over: bool) -> None:
        """Balance for ``rounds`` rounds, or until stopped; then restore the prior settings.

        The settings are not restored if another controller takes over. Raises `Deposed`: another
        controller was elected; `Stopped`: Pulsar's own balancer was switched on, or a permission is
        missing; `LoadManagerError`: it cannot begin, or the prior settings cannot be restored.
        """
        dispatcher = Dispatcher(
            admin=self.admin,
            address=self._address,
            cluster=cluster,
            budget=self.budget,
            stopping=self.stopping,
            mandate=self.mandate,
            log=self.log.task,
        )
        try:
            self._know(cluster)
            await StoredBudget(self.budget, self.pulsar_balancer.state).resume()
            self._note(await self.course.resume(self.pulsar_balancer.state, self._now_ms()))
            await self.pulsar_balancer.begin(self.url, cluster, take_over=take_over)
            self.log.event("Pulsar's own shedding and automatic splits are off")
            await self._sampler.sample(cluster)
            while not self.stopping.is_set() and (rounds is None or rounds > 0):
                if await self._waited():
                    break
                with_moves = await self._round(dispatcher)
                rounds = None if rounds is None else rounds - 1
                if with_moves:
                    samples, _ = await self._sampler.sample(with_moves)
                    self._note_restarts(samples)
        except RightMissing as error:
            raise Stopped(f"stopped: {error}") from None
        finally:
            dispatcher.close()
            if not await self.mandate.hands_over():
                await self._restore()

    async def _waited(self) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self.stopping.wait(), self.interval_s)
        return self.stopping.is_set()

    async def _round(self, dispatcher: Dispatcher) -> PulsarCluster | None:
        try:
            cluster, url = await discover_at_any(self.admin, self._urls)
            self._know(cluster)
            if others := switched_on(cluster):
                raise Stopped(f"stopped: {others}; two balancers undo each other's moves")
            samples, missing = self._fresh(*await self._sampler.sample(cluster))
            seen = await self._observer.observe(url, cluster, samples, missing, self.rules)
            if self.rules.place_new and cluster.manager == "modular":
                placements = await self._new.proposals(url, cluster, samples, self.rules)
                seen = replace(seen, placements=placements)
        except RequestFailed as error:
            self.log.event(f"nothing moves in this round: {error}")
            return None
        held = await self._held(seen)
        self.log.round(seen, held)
        # A controller whose term has ended must not overwrite the state of its successor.
        if not self.mandate.lapsed():
            self._note(await self.course.store(self.pulsar_balancer.state, self._now_ms()))
        if held or not (seen.placements or seen.proposals or seen.splits):
            return None
        return cluster if await self._carried_out(dispatcher, seen) else None

    def _now_ms(self) -> int:
        return round(self.now().timestamp() * 1000)

    def _note(self, trouble: str) -> None:
        if trouble:
            self.log.event(trouble)

    async def _carried_out(self, dispatcher: Dispatcher, seen: Observation) -> bool:
        """Carry out orders; store the budget before and after. Return whether it was stored first.

        Nothing is carried out if the budget cannot be stored before.
        """
        stored = StoredBudget(self.budget, self.pulsar_balancer.state)
        try:
            await stored.store([one.bundle for one in seen.splits or seen.proposals])
        except StateUnusable as error:
            self.log.event(f"nothing moves in this round: {error}")
            return False
        try:
            await dispatcher.carry_out(seen)
        finally:
            if not self.mandate.lapsed():
                try:
                    await stored.store()
                except StateUnusable as error:
                    self.log.event(f"the next controller counts all moves of this round: {error}")
        return True

    def _know(self, cluster: PulsarCluster) -> None:
        if self._brokers and cluster.brokers != self._brokers:
            self._changed_s = monotonic()
        self._brokers = cluster.brokers
        self._urls = (self.url, *(self._address(one) for one in cluster.brokers))

    def _note_restarts(self, samples: Mapping[BrokerId, BrokerSample]) -> None:
        if any(sample.restarted for sample in samples.values()):
            self._changed_s = monotonic()

    def _fresh(
        self, samples: Mapping[BrokerId, BrokerSample], missing: Mapping[BrokerId, str]
    ) -> tuple[Mapping[BrokerId, BrokerSample], Mapping[BrokerId, str]]:
        """Return samples and missing brokers, with brokers whose window is too long as missing."""
        longest_s = max(_STALE_WINDOWS * self.interval_s, _LEAST_STALE_S)
        self._note_restarts(samples)
        stale = {
            broker: f"its rates are of {sample.window_s:.0f} s; expected at most {longest_s:g} s"
            for broker, sample in samples.items()
            if sample.window_s > longest_s
        }
        fresh = {broker: one for broker, one in samples.items() if broker not in stale}
        return fresh, {**missing, **stale}

    async def _held(self, seen: Observation) -> str:
        """Return why nothing may move now; raises `Deposed`."""
        if why := await self.mandate.confirm() or await self.pulsar_balancer.state.paused():
            return why
        began_s = min((one.began_s for one in seen.samples.values()), default=float("-inf"))
        if not self.budget.may_decide_on(began_s):
            return "the sample began before the last move ended"
        if monotonic() < self._changed_s + self.settle_s:
            return f"a broker joined, left or restarted less than {self.settle_s:g} s ago"
        if began_s < self._changed_s:
            return "the sample began before a broker joined, left or restarted"
        now = self.now()
        return self.budget.limits.closed(now.weekday(), now.hour * 60 + now.minute)

    async def _restore(self) -> None:
        """Raises `LoadManagerError`: no broker restored them; the prior settings stay stored."""
        for left in reversed(range(_RESTORE_TRIES)):
            try:
                _, url = await discover_at_any(self.admin, self._urls)
                for line in await self.pulsar_balancer.restore(url):
                    self.log.event(line)
            except PulsarAdminError as error:
                if isinstance(error, RightMissing) or not left:
                    self.log.event(
                        f"Pulsar's settings are not restored ({error}); "
                        "run loadmanager attach --restore as soon as it answers"
                    )
                    raise
                await asyncio.sleep(_RESTORE_PAUSE_S)
            else:
                return
