"""A broker without a lease: the reason, its report, and the agent's next attempt.

The broker may refuse the agent because it obeys a higher agent epoch, which another client may
have sent, or which dates from before ZooKeeper's data were replaced. Each new registration would
briefly list the broker, and the leader would assign bundles to it. So the agent first asks for
its state under ZooKeeper's latest transaction id: the epoch of the subsequent registration can
only be higher. A broker that was restarted, or whose highest epoch ZooKeeper has passed
meanwhile, accepts it.
"""

import math
from typing import Final

import structlog

from loadmanager.agent.takeover import Takeover
from loadmanager.common.context import Context
from loadmanager.core import znodes
from loadmanager.ports.broker import BrokerError

log = structlog.get_logger()

TELL_EVERY_S: Final = 60.0
_TELL_STANDING_BY_EVERY_S: Final = 30.0
_RETRY_S: Final = 0.5
_MOST_DOUBLINGS: Final = 4


class Unleased:
    """Why the broker has no lease now, and how many consecutive refusals there were."""

    def __init__(self, context: Context, succession: Takeover) -> None:
        self._context = context
        self._succession = succession
        self._refusals = 0
        self._tell_again_s = -math.inf
        self._reported_no_contract = False
        self._tell_standing_by_s = -math.inf
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
        self._tell_again_s = -math.inf
        self._context.metrics.broker_leased.set(1)

    def refusal(self) -> None:
        self._refusals += 1

    def ended(self, why: str, *, no_contract: bool) -> None:
        """Report why the broker has no registration now: at once, then once a minute.

        A missing contract is always reported at once: a starting broker does not answer at
        first.
        """
        self.why = why
        self._context.metrics.broker_leased.set(0)
        now_s = self._context.clock.monotonic_s()
        new = no_contract and not self._reported_no_contract
        self._reported_no_contract |= no_contract
        if new or now_s >= self._tell_again_s:
            self._tell_again_s = now_s + TELL_EVERY_S
            log.error("broker.lease.missing", why=why, refusals=self._refusals)

    def standing_by(self, why: str) -> None:
        """Report that another agent has the broker, at once and then twice a minute."""
        now_s = self._context.clock.monotonic_s()
        self.why = why
        self._context.metrics.standing_by.set(1)
        if now_s >= self._tell_standing_by_s:
            self._tell_standing_by_s = now_s + _TELL_STANDING_BY_EVERY_S
            log.error("broker.registration.awaited", why=why)

    def registered(self) -> None:
        self._context.metrics.standing_by.set(0)
        self._tell_standing_by_s = -math.inf

    async def ask(self) -> None:
        """Ask the broker for its state under the latest epoch, without a registration.

        Raises `StaleAgent`: the broker obeys a higher epoch; `BrokerError`: the broker does not
        answer as expected; `Displaced` or `StandingBy`: another agent has the broker;
        `CoordinationError`: another agent registers now, or it cannot be read.
        """
        coordination, folder = (
            self._context.coordination,
            znodes.agents(self._context.identity.broker),
        )
        await coordination.ensure(folder)
        node = await coordination.get(folder)
        await self._succession.insist()
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
