"""``loadmanager attach --config``: one of several candidates, of which one leads by ZooKeeper."""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry

from loadmanager.adapters.clock import SystemClock
from loadmanager.adapters.pulsar_admin.client import PulsarAdminError
from loadmanager.adapters.zookeeper import ZooKeeperCoordination, zookeeper_options
from loadmanager.attach.orders import Elected
from loadmanager.attach.reports import host_name
from loadmanager.attach.state import SharedState, StateUnusable
from loadmanager.common.cluster_conditions import OF_ATTACH, agree, conditions_of
from loadmanager.common.cluster_state import ClusterState
from loadmanager.common.context import Identity, Liveness, UnexpectedErrors, make_identity
from loadmanager.config import load_config
from loadmanager.core import znodes
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.ids import BrokerId
from loadmanager.core.leadership import Incumbent
from loadmanager.core.load import BrokerUrls
from loadmanager.leader.election import Deposed, Election, Term, TermGivenUp
from loadmanager.ports.coordination import Coordination, CoordinationError
from loadmanager.ports.host import Clock
from loadmanager.telemetry.logging import warnings_alone
from loadmanager.telemetry.metrics import Metrics

_REGISTER_S: Final = 2.0
_RETRY_S: Final = 0.2
_TICKS_LATE: Final = 2.0  # The most ticks until ZooKeeper ends a session that has timed out.
Lead = Callable[[Elected, SharedState], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    identity: Identity
    coordination: Coordination
    cluster_state: ClusterState
    clock: Clock
    unexpected: UnexpectedErrors
    longest_session_s: float

    @property
    def state(self) -> SharedState:
        return SharedState(self.coordination)

    async def run(self, lead: Lead, stopping: asyncio.Event, liveness: Liveness) -> None:
        """Raises `LoadManagerError`: leading failed in a way that only people can change."""
        failures: list[LoadManagerError] = []
        idle = asyncio.Event()
        idle.set()

        async def led(term: Term) -> None:
            idle.clear()
            try:
                await lead(Elected(term, self.coordination, self.identity.broker), self.state)
            except Deposed:
                raise
            except LoadManagerError as error:
                again = isinstance(error, PulsarAdminError | StateUnusable)
                if again and not stopping.is_set():
                    raise TermGivenUp(str(error)) from error
                failures.append(error)
            finally:
                idle.set()
            stopping.set()

        election = Election(
            self, eligible=lambda: not stopping.is_set(), lead=led, liveness=liveness
        )

        async def stay_registered() -> None:
            while not stopping.is_set():
                await self.register()
                await self.clock.sleep(_REGISTER_S)

        working = [asyncio.create_task(one) for one in (election.run(), stay_registered())]
        try:
            await stopping.wait()
            await idle.wait()
        finally:
            for one in working:
                one.cancel()
            await asyncio.wait(working)
        if failures:
            raise failures[0]

    def waits_for(self) -> str:
        leader = self.cluster_state.incumbent
        if leader is None or leader.broker == self.identity.broker:
            return ""
        return f"{leader.broker} leads, and its page shows the cluster; this candidate waits"

    async def incumbent(self) -> Incumbent | None:
        self.cluster_state.leader_read(await self.coordination.get(znodes.LEADER))
        return self.cluster_state.incumbent

    async def another_leads(self, former: Incumbent | None) -> bool:
        """Wait for a leader; return False once no candidate is left."""
        # The former one may have crashed, and be listed until its session ends.
        sure_s = self.clock.monotonic_s() + self.longest_session_s
        while True:
            leader = await self.incumbent()
            if leader is not None and (leader != former or self.clock.monotonic_s() > sure_s):
                return True
            if leader is None and not await self.coordination.children(znodes.ATTACH_CANDIDATES):
                return False
            await self.clock.sleep(_RETRY_S)

    async def register(self) -> None:
        path = f"{znodes.ATTACH_CANDIDATES}/{self.identity.broker}"
        while True:
            with suppress(CoordinationError):
                await self.coordination.create(path, b"", ephemeral=True)
                return
            await self.clock.sleep(_RETRY_S)


@asynccontextmanager
async def candidate(path: Path) -> AsyncIterator[Candidate]:
    """Yield a candidate in the chroot that a configuration names, once ZooKeeper answers."""
    name = BrokerId(f"attach-{host_name()}-{secrets.token_hex(4)}:1")
    # A candidate has no broker, and a name of its own in each life.
    config = load_config(path, {**os.environ, "LOADMANAGER_BROKER__ID": name})
    clock, metrics = SystemClock(), Metrics(CollectorRegistry(), config.cluster.name)
    coordination, zookeeper = ZooKeeperCoordination(zookeeper_options(config)), config.zookeeper
    cluster_state = ClusterState(coordination, clock, metrics)
    with warnings_alone():
        await coordination.start()
        try:
            await agree(coordination, clock, replace(conditions_of(config), kind=OF_ATTACH))
            cluster_state.open()
            identity = make_identity(config, 0, clock)
            yield Candidate(
                identity=replace(identity, urls=BrokerUrls(http_url=""), sidecar_url=""),
                coordination=coordination,
                cluster_state=cluster_state,
                clock=clock,
                unexpected=UnexpectedErrors(clock, metrics),
                longest_session_s=zookeeper.session_timeout_s + _TICKS_LATE * zookeeper.tick_s,
            )
        finally:
            cluster_state.close()
            await coordination.close()


@asynccontextmanager
async def standing_until(path: Path, stopping: asyncio.Event) -> AsyncIterator[Candidate | None]:
    """Yield None if asked to stop before ZooKeeper answered; raises as `candidate`."""
    async with AsyncExitStack() as stack:

        async def enter() -> Candidate:
            found = await stack.enter_async_context(candidate(path))
            await found.register()
            return found

        entering = asyncio.create_task(enter())
        stopped = asyncio.create_task(stopping.wait())
        await asyncio.wait({entering, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not entering.done():
            entering.cancel()
            await asyncio.wait({entering})
        yield None if entering.cancelled() else entering.result()
