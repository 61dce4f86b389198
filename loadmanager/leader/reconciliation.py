"""Reconciles orders with the actual state in every round.

Orders, boundaries, locks, lists and reports have one writer each and are eventually consistent.
Inconsistencies are repaired or reported here within one round, so that an unforeseen fault shows
in the log, a metric and explanations, and not as a bundle that no broker serves. The owner of a
bundle splits or merges it in the boundaries of its namespace; the orders follow here.

A free lock is normally taken at once. A broker that takes none of its free locks for half a
session timeout is passed over for a while, as if it were draining, and its bundles are placed on
others. Then it is tried again, after increasing delays, until it takes a lock. Locks held by
others, and ranges that are not in their namespace, do not count against a broker.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

import structlog

from loadmanager.common.context import Context
from loadmanager.core import znodes
from loadmanager.core.bundle_task import TaskEvent
from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import InvalidName, MalformedContent
from loadmanager.core.ids import BrokerId, BundleId, Namespace, namespace_of, parse_bundle
from loadmanager.core.orders import OrderChanges
from loadmanager.core.plan import Reason, Refusal
from loadmanager.leader.records import DecisionLog
from loadmanager.leader.task_controller import TaskController

log = structlog.get_logger()


class Kind(StrEnum):
    STRAY_LOCK = "stray_lock"
    """A lock that is in no owned list: no broker will drop it."""

    LOCKS_UNTAKEN = "locks_untaken"
    """A broker that takes none of its ordered locks: it is assigned no bundles for a while."""

    STUCK_HAND_OVER = "stuck_hand_over"
    """A bundle that its planned owner has not acquired in time."""

    ORDERS_CHANGED = "orders_changed"
    """Orders that differ from those written by the leader."""

    UNKNOWN_RANGE = "unknown_range"
    """An ordered bundle that is not in its namespace's boundaries."""

    VANISHED_NAMESPACE = "vanished_namespace"
    """A bundle of a deleted namespace."""

    SERVED_UNLOCKED = "served_unlocked"
    """A bundle that a broker reports as served after another broker took the lock."""


@dataclass(frozen=True, slots=True)
class Inconsistency:
    kind: Kind
    subject: BundleId | BrokerId
    detail: str
    repaired: bool


CLAIMED_WITHIN_FRACTION: Final = 0.5
"""Fraction of a session timeout within which a broker has to take a free lock."""

REST_S: Final = 60.0
MOST_REST_S: Final = 600.0


class _Assignee(NamedTuple):
    broker: BrokerId
    registered_as: int


@dataclass(frozen=True, slots=True)
class _Rest:
    until_s: float
    registered_as: int
    rest_s: float


_LOOK_AGAIN_S = 1.0
_LISTED_AT_ONCE = 64


@dataclass(slots=True, eq=False)
class Reconciler:
    context: Context
    tasks: TaskController
    decision_log: DecisionLog
    _suspects: set[tuple[BundleId, BrokerId]] = field(default_factory=set, init=False)
    _since_s: dict[BundleId, tuple[_Assignee, float]] = field(default_factory=dict, init=False)
    _claimed_at_s: dict[BrokerId, float] = field(default_factory=dict, init=False)
    _rests: dict[BrokerId, _Rest] = field(default_factory=dict, init=False)

    @property
    def excluded(self) -> frozenset[BrokerId]:
        """The brokers passed over now; none if no other broker could take bundles."""
        now_s, brokers = self.context.clock.monotonic_s(), self.context.cluster_state.brokers
        resting = frozenset(
            broker
            for broker, rest in self._rests.items()
            if rest.until_s > now_s
            and broker in brokers
            and brokers[broker].registered_as == rest.registered_as
        )
        return resting if self._has_others(resting) else frozenset()

    @property
    def waiting(self) -> bool:
        return bool(self._since_s)

    def bundles(self) -> Mapping[BundleId, BrokerId]:
        excluded, owners = self.excluded, self.context.cluster_state.owners
        if not excluded or not self.context.cluster_state.current:
            return {}
        assigned = self.tasks.assigned.items()
        return {b: to for b, to in assigned if to in excluded and b not in owners}

    async def check(self) -> None:
        """Pass over brokers that are too late. Raises `CoordinationError`."""
        if not self.context.cluster_state.current:
            self._since_s.clear()
            return
        now_s = self.context.clock.monotonic_s()
        self._observe(now_s)
        within_s = CLAIMED_WITHIN_FRACTION * self.context.coordination.session.timeout_s
        late: dict[_Assignee, list[BundleId]] = {}
        for bundle, (assignee, since_s) in self._since_s.items():
            if now_s - max(since_s, self._claimed_at_s.get(assignee.broker, since_s)) >= within_s:
                late.setdefault(assignee, []).append(bundle)
        for assignee, bundles in sorted(late.items()):
            others = self._has_others({assignee.broker, *self.excluded})
            if others and await self.context.coordination.get(znodes.lock(min(bundles))) is None:
                self._exclude(assignee, len(bundles), now_s)
            else:
                self._since_s.update(dict.fromkeys(bundles, (assignee, now_s)))
        self.context.metrics.brokers_passed_over.set(len(self.excluded))

    def _observe(self, now_s: float) -> None:
        owners = self.context.cluster_state.owners
        for bundle, (assignee, _) in self._since_s.items():
            holding = owners.get(bundle)
            if holding is not None and holding.broker == assignee.broker:
                self._claimed_at_s[assignee.broker] = now_s
                self._rests.pop(assignee.broker, None)
        before = self._since_s
        self._since_s = {}
        for bundle, assignee in self._claimable():
            former, since_s = before.get(bundle, (assignee, now_s))
            self._since_s[bundle] = (assignee, since_s if former == assignee else now_s)

    def _claimable(self) -> Iterator[tuple[BundleId, _Assignee]]:
        """Yield each unlisted bundle with the registered broker that is to own it."""
        cluster_state, excluded = self.context.cluster_state, self.excluded
        owners = cluster_state.owners
        for bundle, planned in self.tasks.assigned.items():
            if bundle in owners:  # The usual case.
                continue
            if planned in cluster_state.brokers and planned not in excluded:
                boundaries = cluster_state.known_boundaries(namespace_of(bundle))
                if boundaries is not None and bundle in boundaries:
                    yield bundle, _Assignee(planned, cluster_state.brokers[planned].registered_as)

    def _has_others(self, brokers: Container[BrokerId]) -> bool:
        return any(
            other not in brokers and known.registration.takes
            for other, known in self.context.cluster_state.brokers.items()
        )

    def _exclude(self, assignee: _Assignee, bundles: int, now_s: float) -> None:
        broker, registered_as = assignee
        former = self._rests.get(broker)
        again = former is not None and former.registered_as == registered_as
        rest_s = min(2 * former.rest_s, MOST_REST_S) if former and again else REST_S
        self._rests[broker] = _Rest(now_s + rest_s, registered_as, rest_s)
        log.warning("broker.locks.not_acquired", broker=broker, bundles=bundles, rest_s=rest_s)

    async def reconcile(self, is_foreign: Callable[[BundleId, Boundaries], bool]) -> None:
        """Raises `CoordinationError`: the state cannot be read, or the orders be written, now."""
        found = [
            Inconsistency(Kind.ORDERS_CHANGED, broker, "written by another client", repaired=True)
            for broker in await self.tasks.rewrite_changed()
        ]
        found += [
            Inconsistency(Kind.STUCK_HAND_OVER, bundle, f"awaited at {task.target}", repaired=False)
            for task in await self.tasks.tend(TaskEvent.REPEATED)
            for bundle in task.bundles
        ]
        now_s = self.context.clock.monotonic_s()
        for broker in sorted(self.excluded):
            why = f"gets nothing for {self._rests[broker].until_s - now_s:.0f} s"
            found.append(Inconsistency(Kind.LOCKS_UNTAKEN, broker, why, repaired=True))
        found += await self._recall_what_is_no_bundle(is_foreign)
        found += self._served_unlocked()
        self._report(found, [kind for kind in Kind if kind is not Kind.STRAY_LOCK])

    def _report(self, found: Sequence[Inconsistency], kinds: Iterable[Kind]) -> None:
        details: dict[str, list[str]] = {}
        for one in found:
            event = "cluster.state.repaired" if one.repaired else "cluster.state.inconsistent"
            log.warning(event, kind=one.kind.value, subject=one.subject, detail=one.detail)
            details.setdefault(one.subject, []).append(f"{one.kind}: {one.detail}")
        self.decision_log.unplaced(
            Refusal(subject, Reason.OUT_OF_STEP, "; ".join(whys))
            for subject, whys in details.items()
        )
        counts = Counter(one.kind.value for one in found)
        self.context.metrics.disagreements_found(counts, [*map(str, kinds)])

    async def _recall_what_is_no_bundle(
        self, is_foreign: Callable[[BundleId, Boundaries], bool]
    ) -> list[Inconsistency]:
        found: list[Inconsistency] = []
        ordered: dict[Namespace, list[BundleId]] = {}
        for bundle in self.tasks.assigned:
            ordered.setdefault(namespace_of(bundle), []).append(bundle)
        cluster_state = self.context.cluster_state
        for namespace, bundles in sorted(ordered.items()):
            try:
                boundaries = await cluster_state.boundaries(namespace)
                if boundaries is None:
                    # Before a whole namespace is recalled, the server must be up to date.
                    await self.context.coordination.sync(znodes.local_policies(namespace))
                    boundaries = await cluster_state.reread_boundaries(namespace)
            except MalformedContent:
                continue
            gone = [bundle for bundle in bundles if bundle in self.tasks.assigned]
            if boundaries is None:
                log.warning("namespace.bundles.missing", namespace=namespace)
                kind, detail = Kind.VANISHED_NAMESPACE, f"{namespace} does not exist"
            else:
                kind, detail = Kind.UNKNOWN_RANGE, "no bundle of its namespace, nor cut into some"
                gone = [bundle for bundle in gone if is_foreign(bundle, boundaries)]
            found += [Inconsistency(kind, bundle, detail, repaired=True) for bundle in gone]
        if found:
            changes = OrderChanges(gone=[BundleId(one.subject) for one in found])
            await self.tasks.change(lambda: changes)
        return found

    async def find_strays(self) -> None:
        """Find the locks that are in no owned list at two checks: no broker would drop them.

        Lock and list change in one commit but are seen by two watches, so they may briefly differ.
        """
        suspects = await self._unlisted_locks()
        if suspects:
            await self.context.clock.sleep(_LOOK_AGAIN_S)
            suspects &= await self._unlisted_locks()
        for bundle in suspects:
            log.warning("bundle.lock.stray", bundle=bundle, path=znodes.lock(bundle))
        self.context.metrics.stray_locks.set(len(suspects))
        found = [
            Inconsistency(Kind.STRAY_LOCK, bundle, znodes.lock(bundle), repaired=False)
            for bundle in sorted(suspects)
        ]
        self._report(found, [Kind.STRAY_LOCK])

    async def _unlisted_locks(self) -> set[BundleId]:
        found: set[BundleId] = set()
        tenants = await self.context.coordination.children(znodes.LOCKS)
        for path in await self._below([f"{znodes.LOCKS}/{tenant}" for tenant in tenants], 2):
            try:
                found.add(parse_bundle(path.removeprefix(f"{znodes.LOCKS}/")))
            except InvalidName as error:
                log.warning("znode.name.refused", path=path, error=str(error))
        return found - self.context.cluster_state.owners.keys()

    async def _below(self, folders: Sequence[str], levels: int) -> Sequence[str]:
        children = self.context.coordination.children
        for _ in range(levels):
            paths: list[str] = []
            for first in range(0, len(folders), _LISTED_AT_ONCE):
                some = folders[first : first + _LISTED_AT_ONCE]
                listed = await asyncio.gather(*map(children, some))
                found = zip(some, listed, strict=True)
                paths += [f"{folder}/{name}" for folder, names in found for name in names]
            folders = paths
        return folders

    def _served_unlocked(self) -> list[Inconsistency]:
        cluster_state = self.context.cluster_state
        suspects = {
            (bundle, broker)
            for broker, known in cluster_state.loads.reports.items()
            for bundle in known.report.bundles
            if (at := cluster_state.owners.get(bundle))
            and at.broker != broker
            and known.mzxid > at.fencing_token
        }
        found, self._suspects = suspects & self._suspects, suspects
        return [
            Inconsistency(Kind.SERVED_UNLOCKED, bundle, f"by {broker}", repaired=False)
            for bundle, broker in sorted(found)
        ]
