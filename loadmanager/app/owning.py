"""Carrying out what the ownership table orders: locks in ZooKeeper, bundles on the broker.

The table (`loadmanager.core.ownership`) decides; this shell has two workers. One takes
and drops locks, many to a commit, always together with this broker's owned list, so
that the list never names what the session does not hold. The other commands the
broker, one command a bundle at a time.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import structlog

from loadmanager.app.changes import Changes
from loadmanager.app.commanding import BrokerCommands
from loadmanager.app.joints import Joint, Joints
from loadmanager.app.membership import Membership
from loadmanager.app.serving import Serving
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.orders import Orders
from loadmanager.core.ownership import Effect, Event, Phase, may_serve, step
from loadmanager.ports import BrokerControl, SetData
from loadmanager.telemetry.metrics import Metrics

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Cut:
    """A bundle to be replaced by its parts, with the write that moves the boundaries."""

    whole: BundleId
    parts: tuple[BundleId, ...]
    boundaries: SetData


class Ownerships:
    """The bundles of one agent, each in its phase."""

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
        self._next_owner_url = next_owner_url
        self._phases: dict[BundleId, Phase] = {}
        self._tokens: dict[BundleId, int] = {}
        # Of bundles that are halting, and so without a lock; of what the broker last told.
        self._former_tokens: dict[BundleId, int] = {}
        self._told_tokens: Mapping[BundleId, int] = {}
        self._refused: set[BundleId] = set()
        self._commands = BrokerCommands(tasks, broker_control)
        self.serving = Serving()
        self.orders: Orders | None = None
        self._ordered: tuple[BundleId, ...] = ()
        self.doubting = False
        self.takes: dict[BundleId, None] = {}
        self.drops: dict[BundleId, None] = {}
        self.lock_work = Changes()
        self.cuts: dict[BundleId, Cut] = {}
        self.joints = Joints()
        self._split_away: set[BundleId] = set()
        self._parts: dict[BundleId, BundleId] = {}
        self._merged: dict[BundleId, tuple[BundleId, ...]] = {}
        self._joined = False
        self.disobeyed = self._commands.disobeyed

    @property
    def phases(self) -> Mapping[BundleId, Phase]:
        """The phase of every bundle that is not free."""
        return self._phases

    @property
    def tokens(self) -> Mapping[BundleId, int]:
        """The fencing token of every lock this session holds."""
        return self._tokens

    @property
    def handovers(self) -> Mapping[BundleId, BrokerId]:
        """Who gets the bundles that this broker is to let go."""
        return self.orders.handovers if self.orders else {}

    def serves(self, bundle: BundleId) -> bool:
        """Say whether the broker serves ``bundle`` and is to go on: lookups may name it."""
        return self._phases.get(bundle) is Phase.OWNED and bundle not in self.serving.loading

    # --- what happens --------------------------------------------------------------

    def registered(self, membership: Membership) -> None:
        """Command the broker under a new registration from now on."""
        self._commands.begin(membership.agent_epoch)

    def joined(self, membership: Membership) -> None:
        """Take up work under a new registration; the former session's locks are gone."""
        self.registered(membership)
        self._joined = True
        self.compare()

    def obey(self, orders: Orders) -> None:
        """Compare with new standing orders."""
        self.orders, self.doubting = orders, False
        self.lock_work.tell()
        # In one order in all processes, as everything is that a run from a seed repeats.
        self._ordered = tuple(sorted(orders.bundles))
        self._split_away &= orders.bundles
        self._merged = {
            whole: halves
            for whole, halves in self._merged.items()
            if not orders.bundles.isdisjoint(halves)
        }
        self._parts = {
            part: whole
            for part, whole in self._parts.items()
            if whole in orders.bundles or whole in self._phases
        }
        self.compare()

    def doubt(self) -> None:
        """Take no lock until `obey`: other orders stand than those that were obeyed."""
        self.doubting = True

    def recall_all(self) -> None:
        """Give back every bundle, whatever the orders say: this agent is leaving."""
        self._joined = False
        self.joints.clear()
        self._fire_all(Event.RECALLED)

    def compare(self) -> None:
        """Tell every bundle whether it should be owned here, as the orders now stand."""
        if not self._joined or self.orders is None:
            return
        for bundle in self._ordered:
            self._assign(bundle)
        for bundle in list(self._phases):
            self._recall(bundle, self.orders)

    def _compare_some(self, bundles: Iterable[BundleId]) -> None:
        """Compare these alone: what happened to them changes nothing for others."""
        if not self._joined or self.orders is None:
            return
        for bundle in bundles:
            if bundle in self.orders.bundles:
                self._assign(bundle)
            elif bundle in self._phases:
                self._recall(bundle, self.orders)

    def _assign(self, bundle: BundleId) -> None:
        phase = self._phases.get(bundle)
        if phase not in {None, Phase.ABANDONING} or bundle in self._split_away:
            return  # It would change nothing.
        if phase is None and (bundle in self._refused or self._claimed_elsewhere(bundle)):
            return
        self._fire(bundle, Event.ASSIGNED)

    def _recall(self, bundle: BundleId, orders: Orders) -> None:
        # The parts of a bundle that was cut here stay until the orders name them.
        kept = (
            bundle in orders.bundles
            or bundle in self._split_away
            or self._parts.get(bundle) in self._split_away
            or bundle in self._merged
            or bundle in self.joints
        )
        if not kept:
            self._fire(bundle, Event.RECALLED)

    def retry_refused(self) -> None:
        """Let refused locks be tried again: something changed, or time passed."""
        self._refused.clear()
        self.compare()

    def session_lost(self) -> None:
        """The session is gone, and others may take its locks from now on."""
        self._joined = False
        self.takes.clear()
        self.drops.clear()
        self.cuts.clear()
        self.joints.clear()
        self._merged.clear()
        self._split_away.clear()
        self._parts.clear()
        self._fire_all(Event.SESSION_LOST)
        self._tokens.clear()

    def displaced(self) -> None:
        """Leave the broker to another agent: what it serves is that one's to keep or stop."""
        self._commands.end()

    def broker_lost(self) -> None:
        """The lease ran out unrenewed: the broker serves nothing and cannot be asked."""
        self._joined = False
        self.joints.clear()
        self._fire_all(Event.BROKER_LOST)

    @property
    def commands_done(self) -> int:
        """How many commands the broker has answered: a mark in time for `broker_serves`."""
        return self._commands.done

    def broker_serves(self, serving: Mapping[BundleId, int], asked_at: int) -> None:
        """Compare with what the broker said it serves.

        ``asked_at`` is `commands_done` when it was asked. A bundle with a command under
        way, or answered since, is left to the next comparison: the broker's answer may
        be older than the command, and to take it for the outcome could drop a lock
        whose bundle is being served.
        """
        self._told_tokens = serving
        for bundle, phase in list(self._phases.items()):
            if self._commands.since(bundle, asked_at):
                continue
            if phase is Phase.OWNED and serving.get(bundle) != self._tokens[bundle]:
                # Not served, or under an earlier lock: that load did not come through.
                self.serving.awaited(bundle)
                self._fire(bundle, Event.BROKER_FORGOT)
            elif phase is Phase.OWNED:
                self._serving_begun(bundle)
            elif may_serve(phase) and bundle not in serving:
                # Not proof enough: a load of it may still be on its way to the broker, and
                # only an unload that was confirmed keeps it from being obeyed.
                self._command(bundle, Effect.UNLOAD_FROM_BROKER)
        for bundle in serving:
            # What an earlier agent loaded runs on under that agent's lease, which nobody
            # extends: if it is wanted, its lock is taken over and it never stops serving.
            kept = self._phases.get(bundle) is Phase.OWNED or self._is_wanted(bundle)
            if not kept and not self._commands.since(bundle, asked_at):
                self._command(bundle, Effect.UNLOAD_FROM_BROKER)

    def locks_taken(self, tokens: Mapping[BundleId, int]) -> None:
        """A commit created these locks, with these fencing tokens."""
        self._tokens.update(tokens)
        for bundle in tokens:
            self.takes.pop(bundle, None)
            self._metrics.ownership_changed("acquired")
            log.info("bundle.lock.taken", bundle=bundle, fencing_token=tokens[bundle])
            self.serving.awaited(bundle)
            self._fire(bundle, Event.LOCK_TAKEN)

    def lock_refused(self, bundle: BundleId) -> None:
        """Somebody else holds the lock."""
        self.takes.pop(bundle, None)
        self._refused.add(bundle)
        self._fire(bundle, Event.LOCK_REFUSED)

    def locks_dropped(self, bundles: Collection[BundleId]) -> None:
        """A commit deleted these locks."""
        for bundle in bundles:
            self.drops.pop(bundle, None)
            self._tokens.pop(bundle, None)
            self._metrics.ownership_changed("released")
            log.info("bundle.lock.dropped", bundle=bundle)
            self._fire(bundle, Event.LOCK_DROPPED)
        self._compare_some(bundles)

    def cut(self, cut: Cut) -> None:
        """Have the lock keeper replace a bundle by its parts."""
        self.cuts[cut.whole] = cut
        self.lock_work.tell()

    def was_cut(self, cut: Cut, fencing_token: int) -> None:
        """A commit replaced the lock and the range of a bundle by those of its parts.

        The parts are loaded before the whole is unloaded: where both are, the broker
        gives a topic to the newer token, so no message finds nobody.
        """
        if self.orders and cut.whole in self.orders.bundles:
            self._split_away.add(cut.whole)
        for part in cut.parts:
            self.takes.pop(part, None)
            self._tokens[part] = fencing_token
            self._parts[part] = cut.whole
            self._fire(part, Event.SPLIT_OFF)
        self._metrics.ownership_changed("acquired", len(cut.parts))
        self._metrics.ownership_changed("released")
        log.info("bundle.range.split", bundle=cut.whole, parts=cut.parts)
        self.drops.pop(cut.whole, None)
        self._fire(cut.whole, Event.SPLIT_AWAY)
        self._tokens.pop(cut.whole, None)
        self.compare()
        if not self._joined:
            # Everything was recalled meanwhile, or the broker lost: no order keeps these.
            for part in cut.parts:
                self._fire(part, Event.RECALLED)

    def join(self, joint: Joint) -> None:
        """Stop two bundles, and have the lock keeper replace them by one."""
        self.joints.begin(joint)
        for half in joint.both.halves:
            self._fire(half, Event.RECALLED)

    def joining(self, joint: Joint) -> None:
        """The commit that makes the whole is about to be sent: its lock may be taken."""
        self._fire(joint.both.whole, Event.ASSIGNED)

    def not_joined(self, joint: Joint) -> None:
        """It was refused whole: the halves are dropped and taken again, each by itself."""
        self.joints.end(joint)
        self.lock_refused(joint.both.whole)

    def was_joined(self, joint: Joint, fencing_token: int) -> None:
        """A commit replaced the locks and ranges of two bundles by those of the whole.

        The orders name the halves until the leader has seen it; the whole stays until
        they name neither.
        """
        both = joint.both
        self.joints.end(joint)
        named = self.orders.bundles.intersection(both.halves) if self.orders else frozenset()
        self._split_away |= named
        if named:
            self._merged[both.whole] = both.halves
        log.info("bundle.range.merged", bundle=both.whole, halves=both.halves)
        self.locks_dropped(both.halves)
        self.locks_taken({both.whole: fencing_token})

    # --- carrying out --------------------------------------------------------------

    def _fire_all(self, event: Event) -> None:
        for bundle in list(self._phases):
            self._fire(bundle, event)
        self.lock_work.tell()

    def _fire(self, bundle: BundleId, event: Event) -> None:
        before = self._phases.get(bundle, Phase.FREE)
        after, effects = step(bundle, before, event)
        if after is not before:
            log.debug("bundle.phase.changed", bundle=bundle, was=before, now=after, by=event)
            self._metrics.phase_changed(before, after)
            self.serving.phase_changed(bundle, after)
        if after is Phase.HALTING and bundle in self._tokens:
            self._former_tokens[bundle] = self._tokens[bundle]
        if after is Phase.FREE:
            self._phases.pop(bundle, None)
            self._former_tokens.pop(bundle, None)
            self._commands.forget(bundle)
        else:
            self._phases[bundle] = after
        for effect in effects:
            self._carry_out(bundle, effect)

    def _carry_out(self, bundle: BundleId, effect: Effect) -> None:
        if effect in {Effect.TAKE_LOCK, Effect.DROP_LOCK}:
            queue = self.takes if effect is Effect.TAKE_LOCK else self.drops
            queue[bundle] = None
            self.lock_work.tell()
        else:
            self._command(bundle, effect)

    def _command(self, bundle: BundleId, effect: Effect) -> None:
        if effect is Effect.LOAD_ON_BROKER:
            self._commands.give(bundle, effect, self._load)
        else:
            parts = [part for part, whole in self._parts.items() if whole == bundle]
            self._commands.give(bundle, effect, self._unload, after=parts)

    def _is_wanted(self, bundle: BundleId) -> bool:
        phase = self._phases.get(bundle, Phase.FREE)
        wanted = self.orders is not None and bundle in self.orders.bundles
        possible = phase in {Phase.FREE, Phase.ACQUIRING} and bundle not in self._refused
        return wanted and possible

    async def _load(self, bundle: BundleId) -> None:
        token = self._tokens.get(bundle)
        if token is not None and self._phases.get(bundle) is Phase.OWNED:
            await self._commands.load(bundle, token)
            if self._tokens.get(bundle) == token:
                self._serving_begun(bundle)

    def _serving_begun(self, bundle: BundleId) -> None:
        if self.serving.begun(bundle):
            self.lock_work.tell()  # The list is to say so.

    async def _unload(self, bundle: BundleId) -> None:
        if self._phases.get(bundle) is Phase.OWNED:
            return
        whole = self._parts.get(bundle)
        if whole in self._phases:
            # It was cut into this one, and would take the topics back as soon as this
            # one stopped; so it stops first.
            await self._unload(whole)
        known = (self._tokens, self._former_tokens, self._told_tokens)
        token = max(tokens.get(bundle, 0) for tokens in known)
        await self._commands.unload(bundle, token, self._next_owner_url(bundle))
        if may_serve(self._phases.get(bundle, Phase.FREE)):
            self._fire(bundle, Event.BROKER_UNLOADED)
            self._compare_some([bundle])
