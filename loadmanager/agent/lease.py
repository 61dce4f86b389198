"""The lease that lets the broker serve: never longer than the session surely lives.

A session lives at least its timeout from the time at which the ensemble's leader last recorded
that a
heartbeat had been sent, and that may be an earlier one than the last that was committed
(`loadmanager.core.lease`). So after a heartbeat sent at ``t`` the broker may serve until ``t``
plus a part of the timeout (two thirds unless configured, and never more than is safe for the
timeout that the servers granted), or less after heartbeats that came irregularly. Whatever
becomes of this process, the network or ZooKeeper: before anyone else can get the lock, the
lease has run out.

The lease's end is given on the broker's own clock. That clock was read before its
last answer arrived here, so adding the remaining time to that reading can only name a
moment that is too early, however long a renewal is under way. The renewal names the
process whose clock was read: another one, after a restart, may count from elsewhere.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from loadmanager.agent.lease_terms import (
    BrokerLost,
    Displaced,
    LeaseLapsed,
    LeaseTerms,
    MembershipEnded,
)
from loadmanager.agent.ownership_worker import OwnershipWorker
from loadmanager.agent.registration import Membership
from loadmanager.common.context import Context
from loadmanager.core import znodes
from loadmanager.core.ids import BundleId
from loadmanager.core.lease import (
    CLOCK_DRIFT_FRACTION,
    Heartbeats,
    latest_end_s,
    report_interval_s,
)
from loadmanager.ports import BrokerError, BrokerRefused, BrokerState, Disconnected, StaleAgent

log = structlog.get_logger()

MOST_RESTARTS: Final = 3
"""How often a broker may turn out to have restarted while one lease is renewed."""

_LEAST_PAUSE_FRACTION: Final = 2 / 3
"""Of the interval between heartbeats: the least from an answer to the next heartbeat."""


class LeaseKeeper:
    """Renews the broker's lease for one membership, and compares what the broker serves.

    ``earlier_end_s`` is when the lease of this agent's membership before has run out;
    ``heartbeats`` are those of this process in all its memberships. ``has_heirs`` is True if
    another broker could take this one's bundles.
    """

    def __init__(
        self,
        context: Context,
        ownerships: OwnershipWorker,
        terms: LeaseTerms,
        membership: Membership,
        *,
        earlier_end_s: float,
        heartbeats: Heartbeats,
        has_heirs: Callable[[], bool],
    ) -> None:
        self._coordination = context.coordination
        self._broker = context.broker
        self._ownerships = ownerships
        self._clock = context.clock
        self._metrics = context.metrics
        self._terms = terms
        self._membership = membership
        self._heartbeats = heartbeats
        self._has_heirs = has_heirs
        self._heard_since_s = -math.inf
        self._sent_at_s = -math.inf
        self._incarnation = ""
        self._broker_clock_s = 0.0
        self._broker_clock_read_at_s = 0.0
        self._leased_until_s = earlier_end_s
        self._over_at_s = earlier_end_s
        self._answering = False
        self._refusing = False
        self._restarted = False
        self._complaint = ""
        self._shortened = False

    @property
    def leased_until_s(self) -> float:
        """When the broker surely has stopped, on our clock, if no renewal follows.

        That is a little later than its lease ends by its own clock, which may be slower.
        """
        return self._over_at_s

    async def begin(self) -> Mapping[BundleId, int]:
        """Take command of the broker, lease it, and return what it serves, with tokens.

        What an earlier agent loaded runs on, but under that agent's lease.

        Raises:
            Displaced: the broker obeys a newer agent.
            BrokerError: it does not answer.
            Disconnected: the session could not be confirmed.
        """
        self._heard_since_s = self._clock.monotonic_s()
        state = await self._renew(until_s=None)
        if not await self._extend():
            # The leader has the beginning of a new session, which is not known here. The
            # heartbeat that was just answered counts once it surely was reported.
            timeout_s = self._coordination.session.timeout_s
            await self._clock.sleep(report_interval_s(timeout_s, self._terms.tick_s))
            await self._extend()
        return state.serving

    async def run(self) -> None:
        """Renew until cancelled.

        Raises:
            BrokerLost: the broker took no renewal until its lease had run out.
            Displaced: another agent commands the broker.
            LeaseLapsed: for a session timeout each heartbeat was answered too late for a lease.
            MembershipEnded: the session is another one now.
        """
        while True:
            await self._pause()
            if self._coordination.session.session_id != self._membership.session_id:
                raise MembershipEnded("the session was replaced")
            if self._refusing and self._clock.monotonic_s() > self._over_at_s:
                raise BrokerLost(
                    f"it took no renewal until its lease had run out: {self._complaint}"
                )
            try:
                await self._extend()
            except Disconnected:
                # No lock can be deleted meanwhile, and the next heartbeat may be in time.
                self._heard_since_s = self._clock.monotonic_s()
                log.debug("lease.renewal.skipped", why="the session is in doubt")
            except BrokerError as error:
                self._metrics.lease_renewals.labels(result="failed").inc()
                self._complaint = str(error)
                log.warning("lease.renewal.failed", error=self._complaint)
                if self._clock.monotonic_s() > self._over_at_s:
                    raise BrokerLost(str(error)) from error

    async def provable(self) -> None:
        """Return once each heartbeat would have extended a lease, for as long as one lasts.

        At once while no other broker could take the bundles of this one.
        """
        began_s = self._clock.monotonic_s()
        while self._has_heirs():
            sent_at_s = await self._heartbeat()
            now_s, timeout_s = self._clock.monotonic_s(), self._coordination.session.timeout_s
            if self._end_s(sent_at_s, timeout_s) <= now_s:
                began_s = now_s
            elif now_s - began_s >= self._fraction(timeout_s) * timeout_s:
                return
            await self._pause()

    async def _pause(self) -> None:
        """Wait until the next heartbeat is due: an interval after the last one was sent.

        And a part of it after its answer, so that late answers do not cause more requests. With a
        whole one a lease would have gaps sooner where ZooKeeper is slow.
        """
        interval_s = self._terms.interval_fraction * self._coordination.session.timeout_s
        left_s = self._sent_at_s + interval_s - self._clock.monotonic_s()
        await self._clock.sleep(max(left_s, _LEAST_PAUSE_FRACTION * interval_s))

    async def _heartbeat(self) -> float:
        """Return when the heartbeat was sent that has been answered now."""
        self._sent_at_s = sent_at_s = self._clock.monotonic_s()
        await self._coordination.heartbeat()
        return sent_at_s

    async def _extend(self) -> bool:
        """Extend the lease by a heartbeat, and return whether it is long enough for two more."""
        sent_at_s = await self._heartbeat()
        session = self._coordination.session
        if session.session_id != self._membership.session_id:
            raise MembershipEnded("the session was replaced")
        until_s = self._end_s(sent_at_s, session.timeout_s)
        self._let_go_if_late(until_s, session.timeout_s)
        if not self._answering:
            # A broker that did not answer may have got the renewal all the same, and
            # a frozen one gets it when it wakes. So nothing is added to its lease until
            # it answers: else its end would move on for ever, and never be certain.
            await self._renew(until_s=None)
        if self._refusing:
            # Likewise one that answers and takes no renewal, on a full disk say: it is asked
            # again for what may be leased already, and for more once it has taken that.
            await self._lease_until(self._leased_until_s)
        if until_s > self._clock.monotonic_s():
            await self._lease_until(until_s)
            self._metrics.lease_renewals.labels(result="renewed").inc()
        return until_s - sent_at_s >= self._terms.shortest_s(session.timeout_s)

    def _let_go_if_late(self, until_s: float, timeout_s: float) -> None:
        """End the membership if no heartbeat was answered in time to give a lease for too long.

        The broker has stopped by then, and the locks would stand for as long as the session lives.
        """
        now_s = self._clock.monotonic_s()
        since_s = max(self._over_at_s, self._heard_since_s)
        if until_s <= now_s and now_s - since_s > timeout_s and self._has_heirs():
            raise LeaseLapsed(
                f"no lease could be held for {timeout_s:g} s: ZooKeeper answered each heartbeat "
                "too late; expected answers within a sixth of the session timeout"
            )

    def _end_s(self, sent_at_s: float, timeout_s: float) -> float:
        """Return until when the heartbeat that was just answered lets the broker serve."""
        known_since_s = self._heartbeats.known_since_s(
            sent_at_s, self._clock.monotonic_s(), report_interval_s(timeout_s, self._terms.tick_s)
        )
        end_s = sent_at_s + self._fraction(timeout_s) * timeout_s
        return min(end_s, latest_end_s(known_since_s, timeout_s))

    def _fraction(self, timeout_s: float) -> float:
        """Return what to lease of a session, and log once that it is less than configured."""
        fraction = self._terms.safe_fraction(timeout_s)
        if fraction < self._terms.fraction and not self._shortened:
            self._shortened = True
            log.warning(
                "lease.fraction.shortened",
                self_fence_fraction=self._terms.fraction,
                used=round(fraction, 3),
                session_timeout_s=timeout_s,
                tick_s=self._terms.tick_s,
            )
        return fraction

    async def _lease_until(self, until_s: float) -> None:
        """Have the broker serve until ``until_s`` on our clock; never shorten its lease.

        Raises:
            BrokerRefused: each answer comes from another process.
            Displaced: it restarted, and another agent has registered it.
            MembershipEnded: it restarted, and its registration was deleted.
        """
        self._refusing = True
        longest = (0.0, 0.0)
        for _ in range(1 + MOST_RESTARTS):
            if self._restarted:
                await self._check_registered()
                self._restarted = False
            # Once, unless the broker turns out to have restarted: the new process does
            # not take a time on the clock of the former one.
            named = self._incarnation
            self._leased_until_s = max(self._leased_until_s, until_s)
            left_s = until_s - self._broker_clock_read_at_s
            over_at_s = until_s + CLOCK_DRIFT_FRACTION * max(left_s, 0.0)
            self._over_at_s = max(self._over_at_s, over_at_s)
            longest = max(longest, (self._leased_until_s, self._over_at_s))
            await self._renew(until_s=max(self._broker_clock_s + left_s, 0.0))
            if named == self._incarnation:
                self._refusing = False
                return
        # Not believed: the one process that it may be serves on until the lease is over.
        self._leased_until_s, self._over_at_s, self._refusing = *longest, True
        raise BrokerRefused(
            f"PUT lease: its incarnation changed with each of {1 + MOST_RESTARTS} answers; "
            "expected one that is drawn at the start of the process"
        )

    async def _check_registered(self) -> None:
        """Return if no other agent has registered the broker by now.

        The former process of the broker would refuse this agent then. Its new one remembers
        neither agents nor tokens, and would serve what the other agent has given away.

        Raises:
            Displaced: another agent has.
            MembershipEnded: the registration was deleted.
        """
        me, path = self._membership, znodes.registration(self._membership.broker)
        await self._coordination.heartbeat()  # What was committed before is read after it.
        node = await self._coordination.get(path)
        if node is None:
            raise MembershipEnded("the registration was deleted")
        if node.stat.czxid != me.agent_epoch:
            raise Displaced(f"another agent, of epoch {node.stat.czxid}, registered {me.broker}")

    async def _renew(self, *, until_s: float | None) -> BrokerState:
        asked_at = self._ownerships.commands_done
        epoch = self._membership.agent_epoch
        self._answering = False
        try:
            state = await self._broker.renew_lease(
                agent_epoch=epoch, until_s=until_s, incarnation=self._incarnation or None
            )
        except StaleAgent as error:
            raise Displaced(f"the broker obeys a newer agent: {error}") from error
        self._answering = True
        # A process that has just begun has no lease to load anything under; it is asked
        # again at once.
        if not self._read_clock(state):
            self._ownerships.broker_serves(state.serving, asked_at)
        return state

    def _read_clock(self, state: BrokerState) -> bool:
        """Take up the broker's clock, and return whether its process is another one."""
        restarted = self._incarnation not in {"", state.incarnation}
        if restarted:
            log.warning("broker.process.restarted", incarnation=state.incarnation)
            # Another process, another clock: what was leased on the old one is void.
            self._leased_until_s = self._over_at_s = self._clock.monotonic_s()
            self._refusing, self._restarted = False, True
        self._incarnation = state.incarnation
        self._broker_clock_s = state.clock_s
        self._broker_clock_read_at_s = self._clock.monotonic_s()
        return restarted
