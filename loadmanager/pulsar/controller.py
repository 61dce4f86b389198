import asyncio
import os
import secrets
import shlex
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any, Final, Protocol

from prometheus_client import CollectorRegistry

from loadmanager.adapters.clock import SystemClock
from loadmanager.adapters.zookeeper import ZooKeeperCoordination, zookeeper_options
from loadmanager.common.cluster_conditions import OF_ATTACH, agree, conditions_of
from loadmanager.common.cluster_state import ClusterState
from loadmanager.common.context import Identity, Liveness, UnexpectedErrors, make_identity
from loadmanager.config import load_config
from loadmanager.core import znodes
from loadmanager.core.bundle_traffic import CHANGE_EVENTS, SNAPSHOTS
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.ids import BrokerId
from loadmanager.core.leadership import Contender
from loadmanager.core.load import BrokerUrls
from loadmanager.core.move_limits import HeldReason, MoveBudget, MoveLimits
from loadmanager.leader.election import TURN, Deposed, Election, Term, TermGivenUp
from loadmanager.ports.coordination import CoordinationError
from loadmanager.ports.host import Clock
from loadmanager.ports.session import Coordination
from loadmanager.pulsar.answers import ClusterReader, PulsarCluster, addresses
from loadmanager.pulsar.balancing import Balancer, Log, Observer
from loadmanager.pulsar.client import PulsarAdmin, PulsarAdminError, RequestFailed
from loadmanager.pulsar.held_brokers import Cordon, Cordons, HeldTargets, pause_text
from loadmanager.pulsar.observation import Observation, Rules, Strategy
from loadmanager.pulsar.orders import Elected, Mandate
from loadmanager.pulsar.reports import (
    TermReports,
    history_in,
    host_name,
    served_metrics,
    served_page,
)
from loadmanager.pulsar.sampling import LONGEST_REPEATED_S, REPEATED, Hosts, Sampler
from loadmanager.pulsar.state import (
    PulsarBalancer,
    SharedState,
    State,
    StateFile,
    StateUnusable,
    locked_state,
    state_file,
    state_name,
    stored_brokers,
)
from loadmanager.telemetry.logging import warnings_alone
from loadmanager.telemetry.metrics import Metrics

_REGISTER_S: Final = 2.0
_RETRY_S: Final = 0.2
_TICKS_LATE: Final = 2.0  # The most ticks until ZooKeeper ends a session that has timed out.
Lead = Callable[[Elected, SharedState], Awaitable[None]]


@dataclass(slots=True, kw_only=True, eq=False)
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
            liveness.over(TURN)
        if failures:
            raise failures[0]

    def waits_for(self) -> str:
        leader = self.cluster_state.incumbent
        if leader is None or leader.broker == self.identity.broker:
            return ""
        return f"{leader.broker} leads, and its page shows the cluster; this candidate waits"

    async def incumbent(self) -> Contender | None:
        self.cluster_state.leader_read(await self.coordination.get(znodes.LEADER))
        return self.cluster_state.incumbent

    async def another_leads(self, former: Contender | None) -> bool:
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
                identity=replace(identity, urls=BrokerUrls(), sidecar_url=""),
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


_LAST_LOOK_S: Final = 120.0
_RULES: Final = (
    *("exclude", "move_non_persistent", "most_moves", "split", "place_new"),
    *("most_bundles", "move_system"),
)
_CHANGES: Final = ("pause", "resume", "clear_target", "cordon", "drain", "uncordon")
_DRAIN_POLL_S: Final = 1.0
_ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Output(Log, Protocol):
    def window(self, seen: Observation, *, traffic: bool = False) -> None: ...

    def findings(self, seen: Observation, restore: str) -> bool: ...

    def commands(self, seen: Observation, address: Callable[[BrokerId], str]) -> None: ...


@dataclass(eq=False)
class AttachActions:
    admin: PulsarAdmin
    options: Mapping[str, Any]
    output: Output
    strategy: Callable[[], Strategy]

    def __post_init__(self) -> None:
        self._reader = ClusterReader(self.admin, self.options["urls"])
        self._liveness = Liveness()
        access = self.admin.access
        # Of three intervals one may be longer by what brokers that do not answer take.
        self._silence_s = (access.metrics_timeout_s + 3 * access.timeout_s) / 3

    async def run(self) -> int:
        options = self.options
        try:
            if options["restore"]:
                async with self._state(idle=True) as state:
                    await self._restore_settings(state)
                return 0
            if any(options[name] for name in _CHANGES):
                async with self._state(idle=False) as state:
                    return await self._change(state)
            balances, overdue = options["balance"], self._liveness.overdue
            port, host = options["metrics_port"], options["metrics_host"]
            async with (
                served_metrics(port, host, overdue) as self._metrics,
                served_page(options["page"], balances=balances) as self._overviews,
            ):
                return await (self._balance() if balances else self._observe())
        finally:
            await self.admin.close()

    def _rules(self, *, move_partial: bool = True) -> Rules:
        pinned = (CHANGE_EVENTS, SNAPSHOTS) if self.options["pin_system"] else ()
        same = {name: self.options[name] for name in _RULES}
        return Rules(move_partial=move_partial, pinned=pinned, **same)

    async def _observe(self) -> int:
        options, strategy, interval_s = self.options, self.strategy(), self.options["interval_s"]
        hosts = Hosts(options["cores"], windows=1) if options["doctor"] else strategy.hosts
        sampler = Sampler(self.admin, addresses(self._reader.url), hosts)
        observer = Observer(self._reader, self._rules(), strategy)
        cluster = await self._cluster()
        await sampler.sample(cluster)
        until_s = monotonic() + LONGEST_REPEATED_S
        cordons = Cordons(StateFile(options["state_dir"] / state_name(cluster.name)))
        async with self._reports(cluster, strategy) as reports:
            while True:
                self._liveness.begun("sample", lambda: interval_s + self._silence_s)
                await asyncio.sleep(interval_s)
                cluster = await cordons.marked(await self._reader.read())
                samples, missing = await sampler.sample(cluster)
                repeated = options["once"] and REPEATED in missing.values()
                if repeated and monotonic() < until_s:
                    continue  # There are no rates before the next page.
                seen = await observer.observe(cluster, samples, missing)
                strategy.record_choice()
                if options["doctor"]:
                    return int(self.output.findings(seen, self._restore_command(cluster.name)))
                reports.window(seen)
                if options["commands"]:
                    self.output.commands(seen, self._address)
                else:
                    self._show(seen)
                if options["once"]:
                    return 0

    def _show(self, seen: Observation) -> None:
        try:
            self.output.window(seen, traffic=self.options["once"])
        except OSError as error:
            # On a full disk an observer goes on without lines, for its page and metrics.
            if self.options["once"] or isinstance(error, BrokenPipeError):
                raise

    @asynccontextmanager
    async def _reports(
        self, cluster: PulsarCluster, strategy: Strategy, **more: Any
    ) -> AsyncIterator[TermReports]:
        async with history_in(self.options["history_dir"], cluster.name) as sink:
            reports = TermReports(
                printed=self.output,
                metrics=self._metrics,
                overviews=self._overviews,
                strategy=strategy,
                interval_s=self.options["interval_s"],
                sink=sink,
                **more,
            )
            with reports.recording():
                yield reports

    def _address(self, broker: BrokerId) -> str:
        return self.admin.reachable(addresses(self._reader.url)(broker))

    async def _cluster(self) -> PulsarCluster:
        if self.options["config"] is None:
            known = await stored_brokers(self.options["state_dir"], self.options["urls"])
            self._reader.add(known)
        return await self._reader.read()

    def _restore_command(self, cluster: str) -> str:
        """Return the command that restores what a controller has stored, "" if nothing is."""
        folder = self.options["state_dir"]
        if not (folder / state_name(cluster)).exists():
            return ""
        urls, folder = ",".join(self.options["urls"]), shlex.quote(str(folder))
        return f"loadmanager attach --pulsar {urls} --state-dir {folder} --restore"

    @asynccontextmanager
    async def _state(self, *, idle: bool) -> AsyncIterator[State]:
        """Give the state of the cluster; if ``idle``, no controller acts on it now."""
        self._reader.with_isolation = False
        if self.options["config"] is not None:
            async with candidate(self.options["config"]) as standing:
                if idle and (leader := await standing.incumbent()):
                    who = leader.broker or "somebody"
                    raise StateUnusable(f"{who} balances it; expected no controller: end it")
                yield standing.state
            return
        folder, cluster = self.options["state_dir"], await self._cluster()
        if not idle:
            yield state_file(folder, cluster.name)
            return
        with locked_state(folder, cluster.name) as state:
            yield state

    async def _restore_settings(self, state: State) -> None:
        self._reader.add(await state.brokers())
        await self._reader.read()
        for line in await PulsarBalancer(state).restore(self._reader):
            self.output.event(line)

    async def _change(self, state: State) -> int:
        if target := self.options["clear_target"]:
            known = await HeldTargets(state).clear(target)
            self.output.event(f"{target} {'takes part again' if known else 'was not left out'}")
        elif self.options["resume"]:
            await state.resume()
            self.output.event("not paused")
        elif self.options["pause"]:
            await state.pause(pause_text("attach --pause"))
            self.output.event("paused: nothing moves until attach --resume")
        elif broker := self.options["uncordon"]:
            known = await Cordons(state).remove(broker)
            self.output.event(f"{broker} {'takes bundles again' if known else 'was not cordoned'}")
        else:
            return await self._cordon(Cordons(state))
        return 0

    async def _cordon(self, cordons: Cordons) -> int:
        """Cordon a broker; if it is drained, follow that, and return 1 if it is not empty."""
        options = self.options
        broker, drain = BrokerId(options["drain"] or options["cordon"]), bool(options["drain"])
        self._reader.with_isolation = True
        self._reader.forget()
        since_ms, by, reason = SystemClock().wall_ms(), options["by"], options["reason"]
        mark = Cordon(drain=drain, since_ms=since_ms, by=by, reason=reason)
        mark = await cordons.put(await self._reader.read(), broker, mark)
        self.output.event(f"{broker} takes no bundle until attach --uncordon {broker}")
        if not drain:
            return 0
        until_s, left = monotonic() + options["drain_timeout_s"], -1
        while True:
            found = await cordons.drained(broker)
            if found is None or found.since_ms != mark.since_ms:
                found = None  # The controller has not read this mark yet.
            elif found.left != left:
                left = found.left
                self.output.event(f"{broker} has {left} bundles left")
            if not left:
                self.output.event(f"{broker} is empty: it is safe to stop")
                return 0
            if monotonic() >= until_s:
                break
            await asyncio.sleep(_DRAIN_POLL_S)
        if found is None:
            why = "no controller has begun; expected attach --balance to run, and to see the broker"
        else:
            stay = "; ".join(f"{count} stay: {why}" for why, count in found.stay.items())
            why = f"{left} bundles are left{stay and f', of which {stay}'}"
        self.output.event(f"{broker} is not empty, and the drain goes on: {why}")
        return 1

    async def _balance(self) -> int:
        options, stopping = self.options, asyncio.Event()
        self.strategy()  # Faults of the options are reported before anything is changed.
        for number in _ENDS:
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        try:
            cluster = await self._cluster()
        except RequestFailed:
            if options["config"] is None:
                raise
            cluster = None  # Other brokers may be known in ZooKeeper.
        if stopping.is_set():
            return 0
        if cluster is None or options["config"] is not None:
            await self._balance_if_elected(stopping, reached=cluster is not None)
            return 0
        with locked_state(options["state_dir"], cluster.name) as state:
            self._take_requests(state)
            await self._led(state, stopping, Mandate())
        return 0

    def _take_requests(self, state: State) -> None:
        reader = ClusterReader(self.admin, self._reader.urls)
        self._overviews.control.begin(state, reader, self.output.event)

    async def _balance_if_elected(self, stopping: asyncio.Event, *, reached: bool) -> None:
        log = self.output
        left: tuple[Contender | None] | None = None
        try:
            async with standing_until(self.options["config"], stopping) as standing:
                if standing is None:
                    return
                if not reached:
                    self._reader.add(await standing.state.brokers())
                    await self._reader.read()
                log.event(f"{standing.identity.broker} stands for election")
                self._overviews.waits = standing.waits_for
                self._take_requests(standing.state)

                async def lead(mandate: Mandate, state: State) -> None:
                    log.event(f"{standing.identity.broker} leads term {mandate.epoch}")
                    await self._led(state, stopping, mandate)

                try:
                    await standing.run(lead, stopping, self._liveness)
                finally:
                    try:
                        if await standing.state.read() is not None:
                            left = (await standing.incumbent(),)
                    except (StateUnusable, CoordinationError) as error:
                        log.event(
                            f"whether Pulsar's settings are restored is not known ({error}); if "
                            "no other candidate is there, run loadmanager attach --restore"
                        )
        finally:
            if left is not None:
                await self._see_that_another_leads(*left)

    async def _see_that_another_leads(self, former: Contender | None) -> None:
        """Wait until another candidate leads, and restore the settings if none is left."""
        self.output.event("waits until another candidate leads; else it restores Pulsar's settings")
        try:
            async with (
                asyncio.timeout(_LAST_LOOK_S),
                candidate(self.options["config"]) as watching,
            ):
                if await watching.another_leads(former):
                    return
                await self._restore_settings(watching.state)
        except TimeoutError:
            raise StateUnusable(
                f"Pulsar's settings are not restored, and no candidate leads after "
                f"{_LAST_LOOK_S:g} s; expected one that does: end all, and run loadmanager attach "
                "--restore"
            ) from None

    async def _led(self, state: State, stopping: asyncio.Event, mandate: Mandate) -> None:
        options, metrics, strategy = self.options, self._metrics, self.strategy()
        names = ("per_minute", "per_hour", "per_namespace", "at_once")
        limits = {name: options[f"moves_{name}"] for name in names}
        limits |= {name: options[name] for name in ("topics_at_once", "windows")}

        def begun(extra_s: float = 0.0) -> None:
            interval_s = options["interval_s"] + self._silence_s + extra_s / 3
            self._liveness.begun("round", lambda: inf if stopping.is_set() else interval_s)

        def unread(_why: str) -> None:
            begun()
            metrics.held.labels(HeldReason.UNREADABLE.value).set(1)

        # Anew in each term: brokers may run another load manager.
        reader = ClusterReader(self.admin, self._reader.urls)
        reader.add(await state.brokers())
        cluster = await reader.read()
        recorded = self._reports(cluster, strategy, epoch=mandate.epoch, begun=begun)
        async with recorded as reports:
            balancer = Balancer(
                reader=reader,
                rules=self._rules(move_partial=False),
                budget=MoveBudget(MoveLimits(**limits)),
                interval_s=options["interval_s"],
                settle_s=options["settle_s"],
                pulsar_balancer=PulsarBalancer(state),
                log=reports,
                stopping=stopping,
                mandate=mandate,
                strategy=strategy,
                course=self._overviews.course,
                unread=unread,
            )
            rounds = 1 if options["once"] else None
            metrics.balancing.set(1)
            begun(_LAST_LOOK_S)  # Brokers may apply the settings late.
            try:
                with self._overviews.of_term():
                    await balancer.run(cluster, rounds, take_over=options["take_over"])
            finally:
                metrics.balancing.set(0)
                self._liveness.over("round")
