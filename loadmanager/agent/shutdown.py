from collections.abc import Callable

import structlog

from loadmanager.agent.ownership_worker import OwnershipWorker
from loadmanager.agent.registration import Membership, deregister
from loadmanager.common.context import Context
from loadmanager.common.runtime_settings import RuntimeSettings
from loadmanager.core.ids import belongs_to_a_broker
from loadmanager.ports.coordination import CoordinationError

log = structlog.get_logger()

_POLL_S = 0.02


class Shutdown:
    """Waits for the drain, and releases bundles that remain.

    ``drain_deadline_s`` of the settings is how long the leader has to hand everything over.
    """

    def __init__(
        self, context: Context, ownerships: OwnershipWorker, settings: RuntimeSettings
    ) -> None:
        self._context = context
        self._ownerships = ownerships
        self._settings = settings
        self.begun = False

    async def drain(self) -> None:
        """Wait while the leader hands over all bundles, as requested by the report.

        It ends at once if no broker could take bundles: without ZooKeeper, or without another
        broker that stays.
        """
        if not self.has_heirs():
            return
        bundles, begun_s = self._ownerships.records.count, self._context.clock.monotonic_s()
        # A broker's own bundles never move, so it does not wait for them.
        await self.let_go(
            begun_s + self._settings.now.drain_deadline_s,
            while_true=lambda: (
                self.has_heirs() and not all(map(belongs_to_a_broker, self._ownerships.phases))
            ),
        )
        log.info(
            "broker.drain.ended",
            bundles=bundles,
            left=self._ownerships.records.count,
            took_s=round(self._context.clock.monotonic_s() - begun_s, 3),
        )

    async def leave(self, membership: Membership, within_s: float) -> None:
        """Release everything in order, so that no client waits for the session to expire.

        The registration goes first: the leader then plans new owners while this broker
        still serves, and recalls each bundle when it has. What is not recalled after
        half of ``within_s``, or has no broker to go to, is given back all the same.
        """
        try:
            await deregister(self._context.coordination, membership)
        except CoordinationError as error:
            log.warning("broker.deregistration.failed", why=str(error))
        begun_s = self._context.clock.monotonic_s()
        await self.let_go(begun_s + within_s / 2, while_true=self.has_heirs)
        self._ownerships.recall_all()
        await self.let_go(begun_s + within_s)

    async def serving_ended(self, leased_until_s: float) -> None:
        """Wait until the broker serves no bundle protected by this session's locks.

        Await it before the session is closed, which frees the locks at once: bundles whose
        unload was not confirmed are served until the lease expires.
        """
        records = self._ownerships.records
        if records.may_be_served:
            log.warning("broker.lease.awaited", bundles=records.count)
            await self.let_go(leased_until_s, while_true=lambda: records.may_be_served)

    async def let_go(
        self, deadline_s: float, *, while_true: Callable[[], bool] = lambda: True
    ) -> None:
        """Return when nothing is left, at the deadline, or when the condition ends."""
        clock = self._context.clock
        while self._ownerships.records.count and while_true() and clock.monotonic_s() < deadline_s:
            await clock.sleep(_POLL_S)

    def has_heirs(self) -> bool:
        me, cluster_state = self._context.identity.broker, self._context.cluster_state
        return cluster_state.current and any(
            broker != me and not known.registration.draining
            for broker, known in cluster_state.brokers.items()
        )
