"""Owns the bundles ordered to this broker.

Orders, results of the lock worker, the broker's replies and the end of a session or lease become
events of the affected bundles here (`loadmanager.core.ownership`).
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping

import structlog

from loadmanager.agent.ownership_effects import OwnershipEffects
from loadmanager.agent.ownership_records import Ownership
from loadmanager.agent.range_changes import RangeChange, RangeChanges
from loadmanager.agent.registration import Membership
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.orders import Orders
from loadmanager.core.ownership import Event, Phase, may_serve
from loadmanager.ports.broker import BrokerControl
from loadmanager.telemetry.metrics import Metrics

log = structlog.get_logger()


class OwnershipWorker:
    """The bundles of one agent, each in its phase.

    ``lock_work`` notifies the lock worker of work, and ``changes`` notifies lookups that the
    result of `serves` has changed.
    """

    def __init__(
        self,
        broker_control: BrokerControl,
        metrics: Metrics,
        *,
        claimed_elsewhere: Callable[[BundleId], bool],
        tasks: asyncio.TaskGroup,
        next_owner_url: Callable[[BundleId], str] = lambda _bundle: "",
    ) -> None:
        self._metrics = metrics
        self._claimed_elsewhere = claimed_elsewhere
        self._effects = OwnershipEffects(
            broker_control, metrics, tasks, next_owner_url, unloaded=self._compare_one
        )
        self._joined = False
        self.records = self._effects.records
        self.takes, self.drops = self.records.takes, self.records.drops
        self.lock_work = self._effects.lock_work
        self.changes = self._effects.serving_changes
        self.range_changes = RangeChanges()
        self.disobeyed = self._effects.disobeyed
        self.orders: Orders | None = None
        self.doubting = False

    @property
    def phases(self) -> Mapping[BundleId, Phase]:
        return self.records.phases

    @property
    def handovers(self) -> Mapping[BundleId, BrokerId]:
        """The next owner of each bundle that this broker is to release."""
        return self.orders.handovers if self.orders else {}

    def serves(self, bundle: BundleId) -> bool:
        """Return whether the broker serves ``bundle`` and will continue: lookups may name it."""
        record = self.records.get(bundle)
        return record is not None and record.phase is Phase.OWNED and not record.loading

    # --- orders ----------------------------------------------------------------------

    def registered(self, membership: Membership) -> None:
        """Command the broker under a new registration from now on."""
        self._effects.begin(membership.agent_epoch)

    def joined(self, membership: Membership) -> None:
        """Resume work under a new registration; the former session's locks are gone."""
        self.registered(membership)
        self._joined = True
        self.compare()

    def obey(self, orders: Orders) -> None:
        former = self.orders.bundles if self.orders else frozenset()
        self.orders, self.doubting = orders, False
        self.lock_work.notify()
        # Sorted, so that a run from a seed repeats in every process.
        for bundle in sorted(former ^ orders.bundles):
            record = self.records.of(bundle)
            record.ordered = bundle in orders.bundles
            record.replaced = False
            self.records.file(record)
        self.compare()

    def doubt(self) -> None:
        """Take no lock until `obey`: the standing orders differ from the obeyed ones."""
        self.doubting = True

    def recall_all(self) -> None:
        """Release every bundle, regardless of the orders: this agent is leaving."""
        self._joined = False
        self.range_changes.give_up_merges()
        self._effects.fire_all(Event.RECALLED)

    def compare(self) -> None:
        self._compare_some(tuple(self.records.unsettled.values()))

    def _compare_some(self, records: Iterable[Ownership]) -> None:
        if not self._joined or self.orders is None:
            return
        for record in records:
            if record.ordered:
                self._assign(record)
            elif record.phase is not Phase.FREE and not self._is_kept(record):
                self._effects.fire(record, Event.RECALLED)

    def _compare_one(self, record: Ownership) -> None:
        self._compare_some([record])

    def _assign(self, record: Ownership) -> None:
        possible = not record.refused and not self._claimed_elsewhere(record.bundle)
        free = record.phase is Phase.FREE and possible
        if not record.replaced and (free or record.phase is Phase.ABANDONING):
            self._effects.fire(record, Event.ASSIGNED)

    def _is_kept(self, record: Ownership) -> bool:
        """Return whether a bundle without an order stays until orders include it.

        The result of a split or merge stays as well, while the orders name the bundles it
        replaced.
        """
        former = map(self.records.get, record.made_of)
        return record.bundle in self.range_changes.merges or any(
            one is not None and one.replaced for one in former
        )

    def retry_refused(self) -> None:
        """Allow refused locks to be tried again: something changed, or time passed."""
        for record in tuple(self.records.unsettled.values()):
            if record.refused:
                record.refused = False
                self.records.file(record)
        self.compare()

    # --- the session, the lease and the broker ---------------------------------------

    def session_lost(self) -> None:
        """The session is gone, and others may take its locks from now on."""
        self._joined = False
        self.range_changes.clear()
        for record in self.records:
            record.replaced, record.made_of, record.made_into = False, (), ()
        self._effects.fire_all(Event.SESSION_LOST)

    def displaced(self) -> None:
        """Leave the broker to another agent, which decides about its served bundles."""
        self._effects.end()

    def broker_lost(self) -> None:
        """The lease expired without renewal: the broker serves nothing and cannot be commanded."""
        self._joined = False
        self.range_changes.give_up_merges()
        self._effects.fire_all(Event.BROKER_LOST)

    @property
    def commands_done(self) -> int:
        """How many commands the broker has answered: a point in time for `broker_serves`."""
        return self._effects.commands_done

    def broker_serves(self, serving: Mapping[BundleId, int], asked_at: int) -> None:
        """Compare with the bundles that the broker reported as served.

        ``asked_at`` is `commands_done` when it was asked. A bundle with a command under
        way, or answered since, is left to the next comparison: the broker's answer may
        be older than the command, and to take it for the outcome could drop a lock
        whose bundle is being served.
        """
        for bundle in serving:
            self.records.of(bundle)
        for record in self.records:
            record.broker_token = serving.get(record.bundle, 0)
            if record.command is None and record.command_ended <= asked_at:
                self._compare_with_broker(record)

    def _compare_with_broker(self, record: Ownership) -> None:
        if record.phase is Phase.OWNED and record.broker_token == record.token:
            self._effects.serving_begun(record)
        elif record.phase is Phase.OWNED:
            # Not served, or under an earlier lock: that load did not come through.
            record.loading = True
            self._effects.fire(record, Event.BROKER_FORGOT)
            self.changes.notify()
        elif may_serve(record.phase) or (record.broker_token and not self._is_wanted(record)):
            # That it is not served now is not proof enough: a load of it may still be on its
            # way to the broker, and only an unload that was confirmed keeps it from being
            # obeyed. What an earlier agent loaded runs on under that agent's lease, which
            # is no longer extended: if it is ordered here, its lock is taken over and service
            # never stops.
            self._effects.unload(record)
        elif record.phase is Phase.FREE:
            record.command_ended = 0
            self.records.file(record)

    def _is_wanted(self, record: Ownership) -> bool:
        possible = record.phase in {Phase.FREE, Phase.ACQUIRING} and not record.refused
        return record.ordered and possible

    # --- what the lock worker did ----------------------------------------------------

    def locks_taken(self, tokens: Mapping[BundleId, int]) -> None:
        for bundle, token in tokens.items():
            record = self.records.of(bundle)
            record.token, record.loading = token, True
            self._metrics.ownership_changed("acquired")
            log.info("bundle.lock.acquired", bundle=bundle, fencing_token=token)
            self._effects.fire(record, Event.LOCK_TAKEN)

    def lock_refused(self, bundle: BundleId) -> None:
        """The lock cannot be taken now; it is tried again when something changes."""
        record = self.records.of(bundle)
        record.refused = True
        self._effects.fire(record, Event.LOCK_REFUSED)

    def locks_dropped(self, bundles: Collection[BundleId]) -> None:
        records = [self.records.of(bundle) for bundle in bundles]
        for record in records:
            self._metrics.ownership_changed("released")
            log.info("bundle.lock.released", bundle=record.bundle)
            self._effects.fire(record, Event.LOCK_DROPPED)
        self._compare_some(records)

    # --- splits and merges -----------------------------------------------------------

    def begin_split(self, change: RangeChange) -> None:
        self.range_changes.begin(change)
        self.lock_work.notify()

    def was_split(self, change: RangeChange, fencing_token: int) -> None:
        """A commit replaced the lock and the range of a bundle by those of its parts.

        The parts are loaded before the whole is unloaded: where both are, the broker
        gives a topic to the newer token, so every message finds one that serves it.
        """
        whole = self.records.of(change.whole)
        parts = [self.records.of(part) for part in change.made]
        whole.replaced, whole.made_into = whole.ordered, change.made
        for part in parts:
            part.token, part.made_of = fencing_token, change.gone
            self._effects.fire(part, Event.SPLIT_OFF)
        self._metrics.ownership_changed("acquired", len(parts))
        self._metrics.ownership_changed("released")
        log.info("bundle.range.split", bundle=change.whole, parts=change.made)
        self._effects.fire(whole, Event.SPLIT_AWAY)
        self.compare()
        if not self._joined:
            # Everything was recalled meanwhile, or the broker lost: no order keeps these.
            for part in parts:
                self._effects.fire(part, Event.RECALLED)

    def begin_merge(self, change: RangeChange) -> None:
        self.range_changes.begin(change)
        for half in change.gone:
            self._effects.fire(self.records.of(half), Event.RECALLED)

    def merging(self, change: RangeChange) -> None:
        """The commit of the merge is about to be sent: the merged bundle's lock may be taken."""
        self._effects.fire(self.records.of(change.whole), Event.ASSIGNED)

    def not_merged(self, change: RangeChange) -> None:
        """The commit was refused: the halves are dropped and taken again separately."""
        self.range_changes.end(change)
        self.lock_refused(change.whole)

    def was_merged(self, change: RangeChange, fencing_token: int) -> None:
        """A commit replaced the locks and ranges of two bundles by those of the whole.

        The orders name the halves until the leader has seen it; the whole stays until
        they name neither.
        """
        self.range_changes.end(change)
        for half in map(self.records.of, change.gone):
            half.replaced = half.ordered
        log.info("bundle.range.merged", bundle=change.whole, halves=change.gone)
        self.locks_dropped(change.gone)
        self.records.of(change.whole).made_of = change.gone
        self.locks_taken({change.whole: fencing_token})
