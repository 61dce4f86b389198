"""Reconciles orders with the actual state in every round.

Orders, boundaries, locks, lists and reports have one writer each and are eventually consistent.
Inconsistencies are repaired or reported here within one round, so that an unforeseen fault shows
in the log, a metric and explanations, and not as a bundle that no broker serves.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from loadmanager.common.context import Context
from loadmanager.core import znodes
from loadmanager.core.bundle_task import TaskEvent
from loadmanager.core.errors import InvalidName, MalformedContent
from loadmanager.core.ids import BrokerId, BundleId, Namespace, namespace_of, parse_bundle
from loadmanager.core.orders import OrderChanges
from loadmanager.leader.adoption import Adoption
from loadmanager.leader.decision_log import DecisionLog
from loadmanager.leader.disagreements import Disagreement, Kind, report
from loadmanager.leader.task_controller import TaskController
from loadmanager.leader.untaken_orders import UntakenOrders

log = structlog.get_logger()

_LOOK_AGAIN_S = 1.0
_LISTED_AT_ONCE = 64


@dataclass(slots=True, eq=False)
class Reconciler:
    context: Context
    tasks: TaskController
    adoption: Adoption
    untaken: UntakenOrders
    decision_log: DecisionLog
    _suspects: set[tuple[BundleId, BrokerId]] = field(default_factory=set, init=False)

    async def reconcile(self) -> None:
        """Raises `CoordinationError`: the state cannot be read, or the orders be written, now."""
        found = [
            Disagreement(Kind.ORDERS_CHANGED, broker, "written by another client", repaired=True)
            for broker in await self.tasks.rewrite_changed()
        ]
        found += [
            Disagreement(Kind.STUCK_HAND_OVER, bundle, f"awaited at {task.target}", repaired=False)
            for task in await self.tasks.tend(TaskEvent.REPEATED)
            for bundle in task.bundles
        ]
        found += self.untaken.disagreements()
        found += await self._recall_what_is_no_bundle()
        found += self._served_unlocked()
        kinds = [kind for kind in Kind if kind is not Kind.STRAY_LOCK]
        report(found, kinds, self.context.metrics, self.decision_log)

    async def _recall_what_is_no_bundle(self) -> list[Disagreement]:
        found: list[Disagreement] = []
        ordered: dict[Namespace, list[BundleId]] = {}
        for bundle in self.tasks.assigned:
            ordered.setdefault(namespace_of(bundle), []).append(bundle)
        for namespace, bundles in sorted(ordered.items()):
            found += await self._no_bundles_of(namespace, bundles)
        if found:
            gone = [BundleId(one.subject) for one in found]
            await self.tasks.change(lambda: OrderChanges(gone=gone))
        return found

    async def _no_bundles_of(
        self, namespace: Namespace, bundles: Sequence[BundleId]
    ) -> list[Disagreement]:
        cluster_state = self.context.cluster_state
        try:
            boundaries = await cluster_state.boundaries(namespace)
            if boundaries is None:
                # Before a whole namespace is recalled, the server must be up to date.
                await self.context.coordination.sync(znodes.local_policies(namespace))
                boundaries = await cluster_state.reread_boundaries(namespace)
        except MalformedContent:
            return []
        bundles = [bundle for bundle in bundles if bundle in self.tasks.assigned]
        if boundaries is None:
            log.warning("namespace.bundles.missing", namespace=namespace)
            kind, detail = Kind.VANISHED_NAMESPACE, f"{namespace} does not exist"
        else:
            kind, detail = Kind.UNKNOWN_RANGE, "no bundle of its namespace, nor cut into some"
            bundles = [bundle for bundle in bundles if self.adoption.is_foreign(bundle, boundaries)]
        return [Disagreement(kind, bundle, detail, repaired=True) for bundle in bundles]

    async def find_strays(self) -> None:
        """Find the locks that are in no owned list at two checks: no broker would drop them.

        Lock and list change in one commit but are observed by two watches, so at the first check
        they may briefly differ. Not part of a round: there is a folder for each namespace. Raises
        `CoordinationError`: they cannot be read now.
        """
        suspects = await self._unlisted_locks()
        if suspects:
            await self.context.clock.sleep(_LOOK_AGAIN_S)
            suspects &= await self._unlisted_locks()
        for bundle in suspects:
            log.warning("bundle.lock.stray", bundle=bundle, path=znodes.lock(bundle))
        self.context.metrics.stray_locks.set(len(suspects))
        found = [
            Disagreement(Kind.STRAY_LOCK, bundle, znodes.lock(bundle), repaired=False)
            for bundle in sorted(suspects)
        ]
        report(found, [Kind.STRAY_LOCK], self.context.metrics, self.decision_log)

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
        """Return the paths so many levels below; many folders are listed at once."""
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

    def _served_unlocked(self) -> list[Disagreement]:
        """Return bundles that brokers reported twice as served since others took the lock."""
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
            Disagreement(Kind.SERVED_UNLOCKED, bundle, f"by {broker}", repaired=False)
            for bundle, broker in sorted(found)
        ]
