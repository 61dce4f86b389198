import asyncio
import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from math import inf
from time import monotonic
from typing import Final, Protocol

import numpy as np

from loadmanager.adapters.clock import SystemClock
from loadmanager.common.runtime_settings import TaskBounds
from loadmanager.core.bundle_task import (
    AskedBy,
    BundleTask,
    TaskEvent,
    TaskKind,
    TaskState,
    task_of,
)
from loadmanager.core.bundle_traffic import BundleTraffic
from loadmanager.core.errors import LoadManagerError, MalformedContent
from loadmanager.core.filters import Filters
from loadmanager.core.ids import BrokerId, BundleId, Namespace, belongs_to_a_broker, namespace_of
from loadmanager.core.move_limits import HeldReason, MoveBudget
from loadmanager.core.plan import Cause
from loadmanager.core.planner import Planner
from loadmanager.core.playback import Playback
from loadmanager.core.wire.policies import decode_failure_domain
from loadmanager.leader.task_controller import TaskController
from loadmanager.pulsar.answers import (
    FAILURE_DOMAINS,
    MIXED,
    ClusterReader,
    PulsarCluster,
    addresses,
    ask_each,
    read_anti_affinity_group,
    read_boundaries,
    read_failure_domains,
    read_namespaces,
    read_tenants,
)
from loadmanager.pulsar.client import (
    NotPulsar,
    PulsarAdminError,
    RequestFailed,
    RightMissing,
    answer_of,
)
from loadmanager.pulsar.held_brokers import Changes, Cordons, HeldTargets
from loadmanager.pulsar.moves import BrokerQueries
from loadmanager.pulsar.observation import Observation, Rules, Strategy, observe
from loadmanager.pulsar.orders import Mandate, PulsarOrders, SampledOwners, holds_policies, name_in
from loadmanager.pulsar.sampling import BrokerSample, SampledLoads, Sampler, Samples
from loadmanager.pulsar.state import (
    Course,
    PulsarBalancer,
    StateUnusable,
    StoredBudget,
    switched_on,
)

_KNOWN_FOR_S: Final = 300.0
_READ_A_ROUND: Final = 50  # Namespaces without a proposed move whose group is read in one window.
# Windows in a row after which a bundle counts as one without traffic, or with traffic again.
IDLE_WINDOWS: Final = 3


@dataclass(slots=True)
class Observer:
    """Observes windows; groups and failure domains are kept for five minutes, and read in turn."""

    reader: ClusterReader
    rules: Rules = field(default_factory=Rules)
    strategy: Strategy = field(default_factory=Strategy)
    _known: dict[Namespace, tuple[str, float]] = field(default_factory=dict)
    _unread: dict[Namespace, str] = field(default_factory=dict)
    _domains: tuple[Mapping[BrokerId, str], float] | None = None
    _quiet: dict[BundleId, tuple[bool, int]] = field(default_factory=dict)

    async def observe(
        self, cluster: PulsarCluster, samples: Samples, missing: Mapping[BrokerId, str]
    ) -> Observation:
        """Return an observation in which policies hold; bundles whose ones are unknown stay."""
        samples, missing = self.strategy.take(cluster, samples, missing)
        self._unread = {}
        idle = self._note_quiet(samples)
        bundles = (bundle for sample in samples.values() for bundle in sample.bundles)
        served = {namespace_of(one) for one in bundles if not belongs_to_a_broker(one)}
        self._known = {name: one for name, one in self._known.items() if name in served}
        await self._read_groups(self._due(served)[:_READ_A_ROUND])
        refusals = {name: why for name in served if (why := cluster.isolation.refusal(name))}
        while True:
            groups = {name: group for name, (group, _) in self._known.items() if group}
            try:
                domains = await self._failure_domains(cluster) if groups else {}
            except PulsarAdminError as error:
                if isinstance(error, RightMissing):
                    raise
                domains = {}
                self._unread |= dict.fromkeys(groups, f"failure domains are not known: {error}")
            policies = replace(cluster.isolation, anti_affinity=groups, domains=domains)
            seen = observe(
                replace(cluster, isolation=policies),
                samples,
                missing,
                self.rules,
                strategy=self.strategy,
                unknown=self._unread | refusals,
                idle=idle,
            )
            unread = self._due({namespace_of(one.bundle) for one in seen.proposals})
            if not unread:
                return seen
            await self._read_groups(unread)

    def _due(self, names: Iterable[Namespace]) -> list[Namespace]:
        """Return those whose group was not read for `_KNOWN_FOR_S`, the longest ago first."""
        fresh_s = monotonic() - _KNOWN_FOR_S
        read = sorted((self._known.get(name, ("", -inf))[1], name) for name in names)
        return [name for at_s, name in read if at_s < fresh_s]

    async def _read_groups(self, names: Sequence[Namespace]) -> None:
        read = partial(read_anti_affinity_group, self.reader.admin, self.reader.url)
        groups, failed = await ask_each(names, read, known=RequestFailed)
        for name, group in groups.items():
            self._known[name] = group, monotonic()
        for name, why in failed.items():
            self._unread[name] = f"its anti-affinity group is not known: {why}"

    async def _failure_domains(self, cluster: PulsarCluster) -> Mapping[BrokerId, str]:
        if "true" not in cluster.differing(FAILURE_DOMAINS):
            return {}
        if self._domains is None or self._domains[1] < monotonic() - _KNOWN_FOR_S:
            url = self.reader.url
            listed = await read_failure_domains(self.reader.admin, url, cluster.name)
            found: dict[BrokerId, str] = {}
            try:
                for name, one in listed.items():
                    brokers = decode_failure_domain(name, json.dumps(one).encode())
                    found |= dict.fromkeys(brokers, name)
            except MalformedContent as error:
                raise NotPulsar(f"{url}: failure domain {error}") from None
            self._domains = found, monotonic()
        return self._domains[0]

    def _note_quiet(self, samples: Samples) -> set[BundleId]:
        """Return bundles without traffic over several windows, not those with one now and then."""
        noted: dict[BundleId, tuple[bool, int]] = {}
        for sample in samples.values():
            for bundle, traffic in sample.bundles.items():
                noted[bundle] = quiet, against = self._quiet.get(bundle, (False, 0))
                if sample.repeated_s or traffic.partial:
                    continue
                none = traffic.msgs_per_s + traffic.passing.msgs_per_s == 0
                against = against + 1 if none is not quiet else 0
                turns = against == IDLE_WINDOWS
                noted[bundle] = (quiet is not turns, 0 if turns else against)
        self._quiet = noted
        return {bundle for bundle, (quiet, _) in noted.items() if quiet}


MOST_TENANTS: Final = 50  # Tenants whose namespaces are read in one round.
# A namespace with more bundles is left to Pulsar: each placement takes a lookup.
MOST_BUNDLES: Final = 128
_TRIED_FOR_S: Final = 60.0
_BY_COUNT: Final = Planner(filters=Filters(even_bundles=True))


@dataclass(slots=True)
class NewNamespaces:
    """Places the bundles of new namespaces that no broker serves yet.

    Pulsar places a bundle at its first lookup, by load figures that do not yet include bundles
    placed just before: a namespace that many clients begin to use at once may end up on few.
    """

    reader: ClusterReader
    rules: Rules
    loads: SampledLoads
    _known: dict[str, frozenset[Namespace] | None] | None = None
    _until_s: dict[Namespace, float] = field(default_factory=dict)

    async def proposals(self, cluster: PulsarCluster, samples: Samples) -> tuple[BundleTask, ...]:
        """Return a broker for each bundle of a new namespace that no broker serves.

        A namespace counts as new for a minute after it is first read. Those that the rules exclude,
        that have an anti-affinity group or more than `MOST_BUNDLES` bundles are left to Pulsar.
        Nothing is proposed while a broker has no sample, because it may serve such a bundle.
        """
        listed, now_s = await self._list(), monotonic()
        new = ((name, until_s) for name, until_s in self._until_s.items() if name in listed)
        self._until_s = {name: until_s for name, until_s in new if now_s < until_s}
        if not samples.keys() >= set(cluster.brokers):
            return ()
        found: list[BundleTask] = []
        for name in sorted(self._until_s):
            with suppress(RequestFailed):
                left = await self._unserved(name, samples)
                view = self.loads.view(cluster.isolation, {})
                refused = cluster.isolation.refusal(name)
                playback = Playback(_BY_COUNT, np.random.default_rng(0))
                for one in playback.place(view, () if refused else left)[0]:
                    why = f"its namespace is new; {one.target} has the fewest of its bundles"
                    found.append(task_of(one, AskedBy.BALANCING, reason=why))
                if not left:
                    del self._until_s[name]
        return tuple(found)

    async def _list(self) -> frozenset[Namespace]:
        """Return the namespaces; read those of tenants not read yet, or read longest ago."""
        admin, url = self.reader.admin, self.reader.url
        tenants = await read_tenants(admin, url)
        known, unread = (self._known or {}), None if self._known is None else frozenset[Namespace]()
        new = {one: unread for one in tenants if one not in known}
        self._known = {**new, **{one: known[one] for one in known if one in set(tenants)}}
        due = list(self._known)[:MOST_TENANTS]
        read = partial(read_namespaces, admin, url)
        found, _ = await ask_each(due, read, known=RequestFailed)
        for tenant in due:
            before = self._known[tenant] = self._known.pop(tenant)
            if (names := found.get(tenant)) is not None:
                self._known[tenant] = names
                fresh = frozenset() if before is None else names - before
                self._until_s |= dict.fromkeys(fresh, monotonic() + _TRIED_FOR_S)
        return frozenset().union(*(names or () for names in self._known.values()))

    async def _unserved(self, namespace: Namespace, samples: Samples) -> list[BundleId]:
        admin, url = self.reader.admin, self.reader.url
        boundaries = await read_boundaries(admin, url, namespace)
        if boundaries is None or len(boundaries.bundles) > MOST_BUNDLES:
            return []
        served = set(chain.from_iterable(one.bundles for one in samples.values()))
        left = [one for one in boundaries.bundles if one not in served]
        if not left or self.rules.why_stays(left[0], BundleTraffic()):
            return []
        return [] if await read_anti_affinity_group(admin, url, namespace) else left


SPLIT_WINDOWS: Final = 3
"""Windows in a row in which a bundle has to be too large before it is split."""

# Time for which a controller that stops follows its last unloads: Pulsar's usual limit.
_LAST_ORDERS_S: Final = 60.0
_RESTORE_TRIES: Final = 3
_RESTORE_PAUSE_S: Final = 2.0
REFUSED_S: Final = 300.0
"""Time after which rounds that are refused for lack of a right end the balancing."""


class Log(Protocol):
    def round(self, seen: Observation, held: str) -> None:
        """``held`` is why nothing may move now, "" if moves are allowed."""

    def task(self, task: BundleTask) -> None: ...

    def event(self, what: str) -> None: ...


_DRAINS_GO_ON: Final = frozenset({HeldReason.PAUSED, HeldReason.SETTLING, HeldReason.WINDOW})
"""Reasons for which nothing moves, but for what operators ordered by name."""


class Stopped(LoadManagerError):
    """Balancing has to stop until an operator changes something; the message says what."""


@dataclass
class Balancer:
    """Balances one cluster until asked to stop.

    For ``settle_s`` after a broker joined, left or restarted nothing moves, nor in a round in which
    a right is missing; after ``refused_s`` of such rounds it ends. ``now`` is the local time, for
    maintenance windows. ``course`` is stored for the next controller, and so are the brokers.
    ``unread`` is called with why a round has no observation.
    """

    reader: ClusterReader
    rules: Rules
    budget: MoveBudget
    interval_s: float
    settle_s: float
    pulsar_balancer: PulsarBalancer
    log: Log
    stopping: asyncio.Event
    mandate: Mandate = field(default_factory=Mandate)
    now: Callable[[], datetime] = lambda: datetime.now(tz=UTC).astimezone()
    strategy: Strategy = field(default_factory=Strategy)
    course: Course = field(default_factory=Course)
    unread: Callable[[str], None] = lambda _: None
    refused_s: float = REFUSED_S
    _oversized: dict[BundleId, int] = field(default_factory=dict)
    _more_windows: int = SPLIT_WINDOWS - 1
    _goes_on: bool = False
    _brokers: tuple[BrokerId, ...] = ()
    _refusal: RightMissing | None = None
    _refused_since_s: float = float("inf")
    _placing: frozenset[BundleId] = frozenset()
    _sent: dict[BundleId, int] = field(default_factory=dict)
    _unfinished: BundleId | None = None
    _progress: asyncio.Event = field(default_factory=asyncio.Event)
    _failures: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        admin, self._address = self.reader.admin, addresses(self.reader.url)
        self._observer = Observer(self.reader, self.rules, self.strategy)
        self._new = NewNamespaces(self.reader, self.rules, self.strategy.loads)
        self._sampler = Sampler(admin, self._address, self.strategy.hosts)
        self._changes = Changes(self.settle_s)
        self._targets = HeldTargets(self.pulsar_balancer.state)
        self._cordons = Cordons(self.pulsar_balancer.state)

    async def run(self, cluster: PulsarCluster, rounds: int | None, *, take_over: bool) -> None:
        """Balance for ``rounds`` rounds, or until stopped; then restore the prior settings.

        The settings are not restored if another controller takes over. Raises `Deposed`: another
        controller was elected; `Stopped`: Pulsar's own balancer was switched on, or a permission is
        missing; `LoadManagerError`: it cannot begin, or the prior settings cannot be restored.
        """
        self._open_tasks(cluster)
        try:
            await self._know(cluster)
            await StoredBudget(self.budget, self.pulsar_balancer.state).resume()
            with self._reported("the course of the balance starts over: "):
                await self.course.resume(self.pulsar_balancer.state, self._now_ms())
            await self.pulsar_balancer.begin(self.reader, cluster, take_over=take_over)
            self.log.event("Pulsar's own shedding and automatic splits are off")
            await self._sampler.sample(cluster)
            while not self.stopping.is_set() and (rounds is None or rounds > 0):
                if await self._waited():
                    break
                with_moves = await self._round_unless_refused(last=rounds == 1)
                rounds = rounds if rounds is None or self._goes_on else rounds - 1
                if with_moves and rounds != 0:
                    # What clients catch up within the first window after moves is no rate.
                    for wait in (True, False):
                        samples, _ = await self._sampler.sample(with_moves)
                        self._note_restarts(samples)
                        if wait and await self._waited():
                            break
            if self._refusal is not None and not self.stopping.is_set():
                raise self._refusal
        except RightMissing as error:
            raise Stopped(f"stopped: {error}") from None
        finally:
            self._tasks.close()
            if not await self.mandate.hands_over():
                await self._restore()

    def _open_tasks(self, cluster: PulsarCluster) -> None:
        """Let tasks be carried out as this load manager does it."""
        self._manager, self._owners = cluster.manager, SampledOwners()
        owners, admin, at_once = self._owners, self.reader.admin, self.budget.limits.at_once
        self._orders = PulsarOrders(
            BrokerQueries(admin, self._address, cluster.name, lambda: owners.brokers),
            claims=cluster.manager != "extensible",
            owners=owners,
            topic_of=owners.topic_of,
            mandate=self.mandate,
            failed=self._failed,
            name_in=lambda bundle: name_in(bundle) if bundle in self._placing else None,
            active_topics=owners.active_topics,
            sent=self._unload_sent,
        )
        self._tasks = TaskController(
            self.mandate.epoch,
            self._orders,
            owners,
            SystemClock(),
            # The controller repeats no orders: `PulsarOrders` follows each one to its end.
            bounds=lambda: TaskBounds(most_per_broker=at_once, lost_after_s=inf),
            listener=self._task_changed,
            caught=lambda _, error: self._failed(error),
        )

    async def _waited(self) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self.stopping.wait(), self.interval_s)
        return self.stopping.is_set()

    async def _round_unless_refused(self, *, last: bool) -> PulsarCluster | None:
        """Raises `RightMissing`: it has been missing for too long."""
        self._goes_on = False
        try:
            with_moves = await self._round(last=last)
        except PulsarAdminError as error:
            if isinstance(error, RightMissing):
                self._refusal, now_s = error, monotonic()
                self._refused_since_s = min(self._refused_since_s, now_s)
                if now_s - self._refused_since_s >= self.refused_s:
                    raise
            self.unread(str(error))
            self.log.event(f"nothing moves in this round: {error}")
            return None
        self._refusal, self._refused_since_s = None, float("inf")
        return with_moves

    async def _round(self, *, last: bool) -> PulsarCluster | None:
        cluster = await self.reader.read()
        await self._know(cluster)
        if others := switched_on(cluster):
            raise Stopped(f"stopped: {others}; two balancers undo each other's moves")
        cluster = await self._cordons.marked(cluster)
        samples, missing = await self._sampler.sample(cluster)
        self._note_restarts(samples)
        self._owners.window(samples)
        left_out = await self._left_out()
        url, placements = self.reader.url, tuple[BundleTask, ...]()
        with answer_of(url):
            takes_part = {name: one for name, one in samples.items() if name not in left_out}
            seen = await self._observer.observe(cluster, takes_part, {**missing, **left_out})
            if self.rules.place_new and cluster.manager == "modular":
                placements = await self._new.proposals(cluster, samples)
        stuck, half_used = self._orders.stuck, self.budget.half_used(monotonic())
        seen = replace(
            seen,
            proposals=tuple(
                one
                for one in seen.proposals
                if one.bundle not in stuck and not (one.cause is Cause.COUNT and half_used)
            ),
            splits=tuple(one for one in seen.splits if one.bundle not in stuck),
            placements=tuple(one for one in placements if one.target not in left_out),
            lost=self._changes.lost(monotonic()),
        )
        holds = await self._holds(seen)
        reason, held = next(iter(holds.items()), (None, ""))
        if left_out:
            named = " and ".join(f"{broker} ({why})" for broker, why in left_out.items())
            holds[HeldReason.BROKER] = f"left out: {named}"
        if refused := cluster.isolation.refusals:
            holds[HeldReason.UNREADABLE] = refused
        seen = replace(seen, holds={**holds, **seen.holds})
        if not held:
            self.strategy.record_choice()
        self.log.round(seen, held)
        # A controller whose term has ended must not overwrite the state of its successor.
        if not self.mandate.lapsed():
            with self._reported("the course of the balance is not stored: "):
                await self.course.store(self.pulsar_balancer.state, self._now_ms())
            with self._reported("what is left on draining brokers is not stored: "):
                await self._cordons.note(seen.leaving)
        self._oversized = {
            one.bundle: self._oversized.get(one.bundle, 0) + 1 for one in seen.splits
        }
        # They were too large in each of the last windows.
        lasting = [one for one in seen.splits if self._oversized[one.bundle] >= SPLIT_WINDOWS]
        # A limit is said of each move that it prevents.
        if held and reason is not HeldReason.BUDGET:
            goes_on = Cause.DRAINING if reason in _DRAINS_GO_ON else None
            drains = tuple(one for one in seen.proposals if one.cause is goes_on)
            seen, lasting = replace(seen, proposals=drains, splits=(), placements=()), []
        if last and len(lasting) < len(seen.splits) and self._more_windows:
            # A split does not follow a single window; a last round lasts for several.
            self._goes_on, self._more_windows = True, self._more_windows - 1
            return None
        seen = replace(seen, splits=await self._allowed(url, lasting))
        if not (seen.placements or seen.proposals or seen.splits):
            return None
        return cluster if await self._carried_out(seen) else None

    def _now_ms(self) -> int:
        return round(self.now().timestamp() * 1000)

    @contextmanager
    def _reported(self, what: str) -> Iterator[None]:
        try:
            yield
        except (StateUnusable, MalformedContent) as error:
            self.log.event(f"{what}{error}")

    async def _carried_out(self, seen: Observation) -> bool:
        """Carry out orders; store the budget before and after. Return whether it was stored first.

        Nothing is carried out if the budget cannot be stored before.
        """
        stored = StoredBudget(self.budget, self.pulsar_balancer.state)
        with self._reported("nothing moves in this round: "):
            await stored.store([one.bundle for one in seen.splits or seen.proposals])
            try:
                await self._propose(seen)
            finally:
                if not self.mandate.lapsed():
                    with self._reported("the next controller counts all moves of this round: "):
                        await stored.store()
            return True
        return False

    async def _propose(self, seen: Observation) -> None:
        """Place unserved bundles, then carry out the splits, or if there are none the moves."""
        self._owners.sampled(seen.cluster.brokers, seen.samples)
        splits = [one for one in seen.splits if one.bundle not in self._orders.unsplittable]
        moving = splits or seen.proposals
        self._failures.clear()
        self._placing = frozenset(one.bundle for one in seen.placements)
        self._unfinished, at_once = None, self.budget.limits.at_once

        async def end_in_time() -> None:
            await self.stopping.wait()
            await asyncio.sleep(_LAST_ORDERS_S)
            self._orders.close()

        ending = asyncio.create_task(end_in_time())
        try:
            for first in (True, False):  # Otherwise Pulsar places those that hold policies.
                placements = [one for one in seen.placements if holds_policies(one.bundle) is first]
                await self._carry_out(seen, placements, at_once)
            await self._carry_out(seen, moving, 1 if splits else at_once)
        finally:
            # Also after an error, wait until the owner of each ordered bundle is known.
            await self._orders.settled()
            ending.cancel()

    def _fits(self, proposal: BundleTask) -> bool:
        under_way = [self._owners.topics(one.bundle) for one in self._tasks.tasks]
        topics = sum(under_way) + self._owners.topics(proposal.bundle)
        return not under_way or topics <= self.budget.limits.topics_at_once

    async def _carry_out(
        self, seen: Observation, proposed: Iterable[BundleTask], at_once: int
    ) -> None:
        waiting, live = deque(proposed), self._tasks.tasks
        while waiting or len(live):
            self._progress.clear()
            while waiting and len(live) < at_once and self._fits(waiting[0]):
                proposal = waiting.popleft()
                if why := self._held(seen, proposal):
                    self._tasks.withdraw(proposal, f"held: {why}")
                    continue
                found = await self._tasks.dispatch([proposal])
                refused = found.refused.get(proposal.bundle)
                if not found.tasks and refused is not None:
                    self._tasks.withdraw(proposal, refused)
            if len(live):
                await self._progress.wait()
            if self._failures:
                raise self._failures[0]

    def _held(self, seen: Observation, proposal: BundleTask) -> str:
        if self.stopping.is_set():
            return "asked to stop"
        if self._failures:
            return "another order was refused"
        if proposal.kind is TaskKind.PLACE:
            return ""  # It interrupts no client, so no limit on moves applies to it.
        if self._unfinished is not None:
            return f"the split of {self._unfinished} is not finished"
        if why := seen.holds.get(HeldReason.BUDGET):
            return why
        return self.budget.exhausted(proposal.bundle, monotonic(), urgent=seen.urgent)

    def _unload_sent(self, bundle: BundleId) -> None:
        self._sent[bundle] = self._sent.get(bundle, 0) + 1
        if self._sent[bundle] > 1:
            self.budget.again(bundle, monotonic())

    def _task_changed(self, task: BundleTask) -> None:
        self._progress.set()
        begins = task.last_event is TaskEvent.ORDER_WRITTEN
        if task.kind is not TaskKind.PLACE and (begins or (task.state.ended and task.attempts)):
            sent = self._sent.pop(task.bundle, 0)
            if begins:
                self.budget.begin(task.bundle, monotonic())
            else:
                self.budget.end(task.bundle, monotonic(), unsent=not sent)
        if task.kind is TaskKind.SPLIT and task.state is TaskState.TIMED_OUT:
            self._unfinished = task.bundle
        if task.state is TaskState.OWNED_NOT_SERVED:
            self._targets.add(task.target, f"it owned {task.bundle} without serving its topics")
        if begins or task.state.ended:
            self.log.task(task)

    def _failed(self, error: BaseException) -> None:
        if not isinstance(error, RightMissing):
            self.stopping.set()
        self._failures.append(error)

    async def _left_out(self) -> Mapping[BrokerId, str]:
        held = dict(self._changes.held(monotonic()))
        for bundle, move in self._orders.stuck.items():
            held[move.target] = f"{move.source} does not release {bundle}, which is to move to it"
        with self._reported(""):
            await self._targets.refresh()
        return {**held, **self._targets.held}

    async def _allowed(self, url: str, splits: list[BundleTask]) -> tuple[BundleTask, ...]:
        most, allowed, counts = self.rules.most_bundles, [], Counter[Namespace]()
        for one in splits:
            namespace = namespace_of(one.bundle)
            try:
                if namespace not in counts:
                    boundaries = await read_boundaries(self.reader.admin, url, namespace)
                    counts[namespace] = most if boundaries is None else len(boundaries.bundles)
            except RequestFailed as error:
                self.log.event(f"{one.bundle} is not split: {error}")
                continue
            if counts[namespace] < most:
                counts[namespace] += 1
                allowed.append(one)
            else:
                why = f"{namespace} has {counts[namespace]} bundles; expected less than {most}"
                self.log.event(f"{one.bundle} is not split: {why} (--most-bundles)")
        return tuple(allowed)

    async def _know(self, cluster: PulsarCluster) -> None:
        if cluster.manager not in {MIXED, self._manager}:
            self._tasks.close()
            self._open_tasks(cluster)
        self._changes.listed(cluster.brokers, monotonic())
        if cluster.brokers == self._brokers or self.mandate.lapsed():
            return
        self._brokers = cluster.brokers
        with self._reported("the list of brokers is not stored: "):
            await self.pulsar_balancer.state.know(self.reader.urls)

    def _note_restarts(self, samples: Mapping[BrokerId, BrokerSample]) -> None:
        for broker, sample in samples.items():
            if sample.restarted:
                self._changes.restarted(broker, monotonic())

    async def _holds(self, seen: Observation) -> dict[HeldReason, str]:
        """Return why nothing may move now, empty if it may; raises `Deposed`."""
        for reason, why in (
            (HeldReason.LEADERSHIP, await self.mandate.confirm()),
            (HeldReason.PAUSED, await self.pulsar_balancer.state.paused()),
            (HeldReason.MIGRATION, seen.cluster.migration),
            (HeldReason.UNREADABLE, self._cordons.trouble),
        ):
            if why:
                return {reason: why}
        now_s, changed_s = monotonic(), self._changes.last_s
        settling = now_s < changed_s + self.settle_s
        began_s = min((one.began_s for one in seen.samples.values()), default=float("-inf"))
        changed = "a broker joined, left or restarted"
        if not self.budget.may_decide_on(began_s):
            return {HeldReason.SAMPLE: "the sample began before the last move ended"}
        if began_s < changed_s:
            return {HeldReason.SAMPLE: f"the sample began before {changed}"}
        if settling:
            return {HeldReason.SETTLING: f"{changed} less than {self.settle_s:g} s ago"}
        now = self.now()
        if why := self.budget.limits.closed(now.weekday(), now.hour * 60 + now.minute):
            return {HeldReason.WINDOW: why}
        why = self.budget.used_up(now_s, urgent=seen.urgent)
        return {HeldReason.BUDGET: why} if why and (seen.proposals or seen.splits) else {}

    async def _restore(self) -> None:
        """Raises `LoadManagerError`: no broker restored them; the prior settings stay stored."""
        self.reader.with_isolation = False
        for left in reversed(range(_RESTORE_TRIES)):
            try:
                for line in await self.pulsar_balancer.restore(self.reader):
                    self.log.event(line)
            except (PulsarAdminError, StateUnusable) as error:
                if not left:
                    self.log.event(
                        f"Pulsar's settings are not restored ({error}); "
                        "run loadmanager attach --restore as soon as it answers"
                    )
                    raise
                await asyncio.sleep(_RESTORE_PAUSE_S)
            else:
                return
