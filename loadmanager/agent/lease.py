"""The lease of the broker, which never outlasts the guaranteed life of the session.

A session lives for at least its timeout after the last heartbeat recorded by the ensemble's
leader, which may be an earlier one than the last committed (`loadmanager.core.lease`). So after
a heartbeat sent at ``t`` the broker may serve until ``t`` plus a part of the timeout (two thirds
unless configured, and never more than is safe for the timeout that the servers granted), or less
after irregular heartbeats. Whatever happens to this process, the network or ZooKeeper, the lease
expires before any other broker can acquire the lock.

The lease's end is given on the broker's own clock. That clock was read before its last answer
arrived here, so adding the remaining time to that reading can only name a time that is too early.
The renewal names the process whose clock was read: a new process may have another origin.

The broker may refuse an agent because it obeys a higher agent epoch, which another client sent,
or which dates from before ZooKeeper's data were replaced. Each new registration would briefly
list it, and the leader would assign bundles to it. So the agent first asks for its state under
ZooKeeper's latest transaction id: the epoch of the next registration can only be higher.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from loadmanager.agent.ownership import LOG_INTERVAL_S, OwnershipWorker
from loadmanager.agent.registration import (
    BrokerLost,
    Displaced,
    LeaseLapsed,
    LeaseTerms,
    Membership,
    MembershipEnded,
    Takeover,
)
from loadmanager.common.context import Context
from loadmanager.core import znodes
from loadmanager.core.ids import BundleId
from loadmanager.core.lease import CLOCK_DRIFT_FRACTION, Heartbeats, latest_end_s, report_interval_s
from loadmanager.ports.broker import BrokerError, BrokerRefused, BrokerState, StaleAgent
from loadmanager.ports.coordination import Disconnected

log = structlog.get_logger()

_STANDBY_LOG_INTERVAL_S: Final = 30.0
_RETRY_S: Final = 0.5
_MOST_DOUBLINGS: Final = 4


class LeaseBackoff:
    def __init__(self, context: Context, succession: Takeover) -> None:
        self._context = context
        self._succession = succession
        self._refusals = 0
        self._log_again_s = -math.inf
        self._reported_no_contract = False
        self._log_standby_s = -math.inf
        self.why = "it is being registered"
        context.metrics.broker_leased.set(0)

    @property
    def refused(self) -> bool:
        return self._refusals > 0

    @property
    def pause_s(self) -> float:
        return _RETRY_S * 2.0 ** min(max(self._refusals - 1, 0), _MOST_DOUBLINGS)

    def leased(self) -> None:
        self._refusals = 0
        self._reported_no_contract = False
        self._log_again_s = -math.inf
        self._context.metrics.broker_leased.set(1)

    def refusal(self) -> None:
        self._refusals += 1

    def ended(self, why: str, *, no_contract: bool) -> None:
        """Report why the broker has no registration: at once, then once a minute."""
        self.why = why
        self._context.metrics.broker_leased.set(0)
        now_s = self._context.clock.monotonic_s()
        new = no_contract and not self._reported_no_contract
        self._reported_no_contract |= no_contract
        if new or now_s >= self._log_again_s:
            self._log_again_s = now_s + LOG_INTERVAL_S
            log.error("broker.lease.missing", why=why, refusals=self._refusals)

    def standing_by(self, why: str) -> None:
        now_s = self._context.clock.monotonic_s()
        self.why = why
        self._context.metrics.standing_by.set(1)
        if now_s >= self._log_standby_s:
            self._log_standby_s = now_s + _STANDBY_LOG_INTERVAL_S
            log.error("broker.registration.awaited", why=why)

    def registered(self) -> None:
        self._context.metrics.standing_by.set(0)
        self._log_standby_s = -math.inf

    async def ask(self) -> None:
        """Ask the broker for its state under the latest epoch, without a registration.

        Raises `StaleAgent`: it obeys a higher epoch; `Displaced`, `OnStandby`: another has it.
        """
        coordination, folder = (
            self._context.coordination,
            znodes.agents(self._context.identity.broker),
        )
        await coordination.ensure(folder)
        node = await coordination.get(folder)
        await self._succession.check_command()
        # Fails if another agent registered since the version was read: its epoch is older.
        version = 0 if node is None else node.stat.version
        stat = await coordination.set(folder, b"", version=version)
        try:
            await self._context.broker.renew_lease(
                agent_epoch=stat.mzxid, until_s=None, incarnation=None
            )
        except BrokerError:
            self.refusal()
            raise


MOST_RESTARTS: Final = 3
"""How many restarts of the broker are tolerated during one renewal."""

_LEAST_PAUSE_FRACTION: Final = 2 / 3
"""Least pause from an answer to the next heartbeat, as a fraction of their interval."""


class LeaseKeeper:
    """Renews the broker's lease for one membership, and compares what the broker serves.

    ``earlier_end_s`` is the end of the previous membership's lease; ``heartbeats`` are those of
    this process in all its memberships; ``has_other_brokers`` could take its bundles.
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
        has_other_brokers: Callable[[], bool],
    ) -> None:
        self._coordination = context.coordination
        self._broker = context.broker
        self._ownerships = ownerships
        self._clock = context.clock
        self._metrics = context.metrics
        self._terms = terms
        self._membership = membership
        self._heartbeats = heartbeats
        self._has_other_brokers = has_other_brokers
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
        self._refusal = ""
        self._shortened = False

    @property
    def leased_until_s(self) -> float:
        """When the broker, whose clock may be slower, has certainly stopped, on our clock."""
        return self._over_at_s

    async def begin(self) -> Mapping[BundleId, int]:
        """Take command of the broker, lease it, and return its served bundles with tokens.

        Bundles loaded by an earlier agent stay served, but under that agent's lease. Raises
        `Displaced`: the broker obeys a newer agent.
        """
        self._heard_since_s = self._clock.monotonic_s()
        state = await self._renew(until_s=None)
        if not await self._extend():
            # Only ZooKeeper's leader knows when a new session began. The heartbeat just answered
            # counts once it must have been reported.
            timeout_s = self._coordination.session.timeout_s
            await self._clock.sleep(report_interval_s(timeout_s, self._terms.tick_s))
            await self._extend()
        return state.serving

    async def run(self) -> None:
        """Renew until cancelled. Raises `MembershipEnded` or `Displaced`."""
        while True:
            await self._pause()
            if self._coordination.session.session_id != self._membership.session_id:
                raise MembershipEnded("the session was replaced")
            if self._refusing and self._clock.monotonic_s() > self._over_at_s:
                raise BrokerLost(f"it took no renewal until its lease had run out: {self._refusal}")
            try:
                await self._extend()
            except Disconnected:
                # No lock can be deleted meanwhile, and the next heartbeat may be in time.
                self._heard_since_s = self._clock.monotonic_s()
                log.debug("lease.renewal.skipped", why="the session is in doubt")
            except BrokerError as error:
                self._metrics.lease_renewals.labels(result="failed").inc()
                self._refusal = str(error)
                log.warning("lease.renewal.failed", error=self._refusal)
                if self._clock.monotonic_s() > self._over_at_s:
                    raise BrokerLost(str(error)) from error

    async def provable(self) -> None:
        """Wait until heartbeats would have held a lease, or no other broker is there."""
        began_s = self._clock.monotonic_s()
        while self._has_other_brokers():
            sent_at_s = await self._heartbeat()
            now_s, timeout_s = self._clock.monotonic_s(), self._coordination.session.timeout_s
            if self._end_s(sent_at_s, timeout_s) <= now_s:
                began_s = now_s
            elif now_s - began_s >= self._fraction(timeout_s) * timeout_s:
                return
            await self._pause()

    async def _pause(self) -> None:
        """Wait until an interval after the last heartbeat was sent.

        The pause after its answer is at least a part of it, so that late answers cause no more
        requests. With a whole interval a lease would sooner have gaps when ZooKeeper is slow.
        """
        interval_s = self._terms.interval_fraction * self._coordination.session.timeout_s
        left_s = self._sent_at_s + interval_s - self._clock.monotonic_s()
        await self._clock.sleep(max(left_s, _LEAST_PAUSE_FRACTION * interval_s))

    async def _heartbeat(self) -> float:
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
        self._end_if_lapsed(until_s, session.timeout_s)
        if not self._answering:
            # A broker that did not answer may have received the renewal nevertheless, and a
            # frozen broker receives it when it resumes. So its lease is not extended until it
            # answers: otherwise its end would keep moving and never be certain.
            await self._renew(until_s=None)
        if self._refusing:
            # The same applies to a broker that answers but accepts no renewal, for example with
            # a full disk: the lease that it may already have is renewed first, and extended once
            # it has accepted that.
            await self._lease_until(self._leased_until_s)
        if until_s > self._clock.monotonic_s():
            await self._lease_until(until_s)
            self._metrics.lease_renewals.labels(result="renewed").inc()
        return until_s - sent_at_s >= self._terms.shortest_s(session.timeout_s)

    def _end_if_lapsed(self, until_s: float, timeout_s: float) -> None:
        """End a membership without a lease for too long: its locks live as long as the session."""
        now_s = self._clock.monotonic_s()
        since_s = max(self._over_at_s, self._heard_since_s)
        if until_s <= now_s and now_s - since_s > timeout_s and self._has_other_brokers():
            raise LeaseLapsed(
                f"no lease could be held for {timeout_s:g} s: ZooKeeper answered each heartbeat "
                "too late; expected answers within a sixth of the session timeout"
            )

    def _end_s(self, sent_at_s: float, timeout_s: float) -> float:
        known_since_s = self._heartbeats.known_since_s(
            sent_at_s, self._clock.monotonic_s(), report_interval_s(timeout_s, self._terms.tick_s)
        )
        end_s = sent_at_s + self._fraction(timeout_s) * timeout_s
        return min(end_s, latest_end_s(known_since_s, timeout_s))

    def _fraction(self, timeout_s: float) -> float:
        """Return the fraction of a session to lease; log once if it is less than configured."""
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
        """Lease the broker until ``until_s`` on our clock; never shorten its lease.

        Raises `BrokerRefused`: each answer comes from another process; or as `_check_registered`.
        """
        self._refusing = True
        longest = (0.0, 0.0)
        for _ in range(1 + MOST_RESTARTS):
            if self._restarted:
                await self._check_registered()
                self._restarted = False
            # Repeated only if the broker has restarted: the new process does not accept a time
            # on the clock of the former one.
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
        # Not credible: if it is a single process, it serves until the lease expires.
        self._leased_until_s, self._over_at_s, self._refusing = *longest, True
        raise BrokerRefused(
            f"PUT lease: its incarnation changed with each of {1 + MOST_RESTARTS} answers; "
            "expected one that is drawn at the start of the process"
        )

    async def _check_registered(self) -> None:
        """Raise if another agent has registered the broker, or the registration was deleted.

        A new process of the broker remembers neither agents nor tokens, and would serve bundles
        that the other agent has released.
        """
        me, path = self._membership, znodes.registration(self._membership.broker)
        await self._coordination.heartbeat()  # Reads after it see all earlier commits.
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
        # A new process has no lease under which to load bundles; the renewal is repeated at once.
        if not self._read_clock(state):
            self._ownerships.broker_serves(state.serving, asked_at)
        return state

    def _read_clock(self, state: BrokerState) -> bool:
        restarted = self._incarnation not in {"", state.incarnation}
        if restarted:
            log.warning("broker.process.restarted", incarnation=state.incarnation)
            # Another process has another clock: the lease of the former one is void.
            self._leased_until_s = self._over_at_s = self._clock.monotonic_s()
            self._refusing, self._restarted = False, True
        self._incarnation = state.incarnation
        self._broker_clock_s = state.clock_s
        self._broker_clock_read_at_s = self._clock.monotonic_s()
        return restarted
