import asyncio
import shlex
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol

from loadmanager.adapters.pulsar_admin.client import PulsarAdmin, RequestFailed
from loadmanager.attach.balancing import Balancer, Log
from loadmanager.attach.discovery import ClusterReader, PulsarCluster, addresses
from loadmanager.attach.observation import Observation, Rules
from loadmanager.attach.observer import Observer
from loadmanager.attach.orders import Mandate
from loadmanager.attach.reports import (
    AttachOverviews,
    BalancerLog,
    recording,
    served_metrics,
    served_page,
    show_window,
)
from loadmanager.attach.sampling import LONGEST_REPEATED_S, REPEATED, Hosts, Sampler
from loadmanager.attach.state import (
    HeldTargets,
    PulsarBalancer,
    State,
    StateUnusable,
    locked_state,
    state_file,
    state_name,
    stored_brokers,
)
from loadmanager.attach.strategy import Strategy
from loadmanager.common.context import Liveness
from loadmanager.core.bundle_traffic import CHANGE_EVENTS, SNAPSHOTS
from loadmanager.core.ids import BrokerId
from loadmanager.core.move_limits import HeldReason, MoveBudget, MoveLimits
from loadmanager.ports.coordination import CoordinationError
from loadmanager.telemetry.metrics import AttachMetrics

if TYPE_CHECKING:
    from loadmanager.attach.candidate import Candidate
    from loadmanager.core.leadership import Incumbent


_LAST_LOOK_S: Final = 120.0
_RULES: Final = (
    *("exclude", "move_non_persistent", "most_moves", "split", "place_new"),
    *("most_bundles", "move_system"),
)
_ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Output(Log, Protocol):
    def window(self, seen: Observation, *, traffic: bool = False) -> None: ...

    def findings(self, seen: Observation, restore: str) -> bool: ...

    def commands(self, seen: Observation, address: Callable[[BrokerId], str]) -> None: ...


class AttachActions:
    _metrics: AttachMetrics
    _overviews: AttachOverviews

    def __init__(
        self,
        admin: PulsarAdmin,
        options: Mapping[str, Any],
        output: Output,
        strategy: Callable[[], Strategy],
    ) -> None:
        self._admin = admin
        self._options = options
        self._log = output
        self._strategy = strategy
        self._reader = ClusterReader(admin, options["urls"])
        self._liveness = Liveness()

    async def run(self) -> int:
        options = self._options
        try:
            if options["restore"]:
                async with self._state(idle=True) as state:
                    await self._restore_settings(state)
                return 0
            if options["pause"] or options["resume"] or options["clear_target"]:
                async with self._state(idle=False) as state:
                    await self._change(state)
                return 0
            balances, overdue = options["balance"], self._liveness.overdue
            port, host = options["metrics_port"], options["metrics_host"]
            async with (
                served_metrics(port, host, overdue) as self._metrics,
                served_page(options["page"], balances=balances) as self._overviews,
            ):
                return await (self._balance() if balances else self._observe())
        finally:
            await self._admin.close()

    def _rules(self, *, move_partial: bool = True) -> Rules:
        pinned = (CHANGE_EVENTS, SNAPSHOTS) if self._options["pin_system"] else ()
        same = {name: self._options[name] for name in _RULES}
        return Rules(move_partial=move_partial, pinned=pinned, **same)

    async def _observe(self) -> int:
        options, strategy, interval_s = self._options, self._strategy(), self._options["interval_s"]
        hosts = Hosts(options["cores"], windows=1) if options["doctor"] else strategy.hosts
        sampler = Sampler(self._admin, addresses(self._reader.url), hosts)
        observer = Observer(self._admin, strategy)
        cluster = await self._cluster()
        await sampler.sample(cluster)
        until_s = monotonic() + LONGEST_REPEATED_S
        with recording(options, cluster, strategy) as history:
            while True:
                self._liveness.begun("sample", lambda: interval_s)
                await asyncio.sleep(interval_s)
                cluster = await self._reader.read()
                samples, missing = await sampler.sample(cluster)
                repeated = options["once"] and REPEATED in missing.values()
                if repeated and monotonic() < until_s:
                    continue  # There are no rates before the next page.
                url = self._reader.url
                seen = await observer.observe(url, cluster, samples, missing, self._rules())
                strategy.record_choice()
                if options["doctor"]:
                    return int(self._log.findings(seen, self._restore_command(cluster.name)))
                show_window(self._metrics, seen)
                self._overviews.round(seen, "")
                if options["commands"]:
                    self._log.commands(seen, self._address)
                else:
                    self._log.window(seen, traffic=options["once"])
                history.round(seen, "")
                if options["once"]:
                    return 0

    def _address(self, broker: BrokerId) -> str:
        return self._admin.reachable(addresses(self._reader.url)(broker))

    async def _cluster(self) -> PulsarCluster:
        if self._options["config"] is None:
            known = await stored_brokers(self._options["state_dir"], self._options["urls"])
            self._reader.add(known)
        return await self._reader.read()

    def _restore_command(self, cluster: str) -> str:
        """Return the command that restores what a controller has stored, "" if nothing is."""
        folder = self._options["state_dir"]
        if not (folder / state_name(cluster)).exists():
            return ""
        urls, folder = ",".join(self._options["urls"]), shlex.quote(str(folder))
        return f"loadmanager attach --pulsar {urls} --state-dir {folder} --restore"

    @asynccontextmanager
    async def _state(self, *, idle: bool) -> AsyncIterator[State]:
        """Give the state of the cluster; if ``idle``, no controller acts on it now."""
        self._reader.with_isolation = False
        if self._options["config"] is not None:
            async with self._candidate() as standing:
                if idle and (leader := await standing.incumbent()):
                    who = leader.broker or "somebody"
                    raise StateUnusable(f"{who} balances it; expected no controller: end it")
                yield standing.state
            return
        folder, cluster = self._options["state_dir"], await self._cluster()
        if not idle:
            yield state_file(folder, cluster.name)
            return
        with locked_state(folder, cluster.name) as state:
            yield state

    async def _restore_settings(self, state: State) -> None:
        self._reader.add(await state.brokers())
        await self._reader.read()
        for line in await PulsarBalancer(state).restore(self._reader):
            self._log.event(line)

    def _candidate(self) -> AbstractAsyncContextManager["Candidate"]:
        # Only here: it needs what sidecars need of libraries.
        from loadmanager.attach.candidate import candidate  # noqa: PLC0415

        return candidate(self._options["config"])

    async def _change(self, state: State) -> None:
        if target := self._options["clear_target"]:
            known = await HeldTargets(state).clear(target)
            self._log.event(f"{target} {'takes part again' if known else 'was not left out'}")
        elif self._options["resume"]:
            await state.resume()
            self._log.event("not paused")
        else:
            at = datetime.now(tz=UTC).isoformat(timespec="seconds")
            await state.pause(f"paused by attach --pause at {at}")
            self._log.event("paused: nothing moves until attach --resume")

    async def _balance(self) -> int:
        options, stopping = self._options, asyncio.Event()
        self._strategy()  # Faults of the options are reported before anything is changed.
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
            await self._led(state, stopping, Mandate())
        return 0

    async def _balance_if_elected(self, stopping: asyncio.Event, *, reached: bool) -> None:
        from loadmanager.attach.candidate import standing_until  # noqa: PLC0415

        log = self._log
        left: tuple[Incumbent | None] | None = None
        try:
            async with standing_until(self._options["config"], stopping) as standing:
                if standing is None:
                    return
                if not reached:
                    self._reader.add(await standing.state.brokers())
                    await self._reader.read()
                log.event(f"{standing.identity.broker} stands for election")
                self._overviews.waits = standing.waits_for

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

    async def _see_that_another_leads(self, former: "Incumbent | None") -> None:
        """Wait until another candidate leads, and restore the settings if none is left."""
        self._log.event("waits until another candidate leads; else it restores Pulsar's settings")
        try:
            async with asyncio.timeout(_LAST_LOOK_S), self._candidate() as watching:
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
        options, metrics = self._options, self._metrics
        strategy = self._strategy()

        def begun(extra_s: float = 0.0) -> None:
            interval_s = options["interval_s"] + extra_s / 3
            self._liveness.begun("round", lambda: inf if stopping.is_set() else interval_s)

        def unread(_why: str) -> None:
            begun()
            metrics.held.labels(HeldReason.UNREADABLE.value).set(1)

        # Anew in each term: brokers may run another load manager.
        reader = ClusterReader(self._admin, self._reader.urls)
        reader.add(await state.brokers())
        cluster = await reader.read()
        with (
            recording(options, cluster, strategy, mandate.epoch) as history,
            self._overviews.of_term(state, self._log.event),
        ):
            balancer = Balancer(
                reader=reader,
                rules=self._rules(move_partial=False),
                budget=MoveBudget(self._limits()),
                interval_s=options["interval_s"],
                settle_s=options["settle_s"],
                pulsar_balancer=PulsarBalancer(state),
                log=BalancerLog(
                    printed=self._log,
                    metrics=metrics,
                    overviews=self._overviews,
                    strategy=strategy,
                    history=history,
                    begun=begun,
                ),
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
                await balancer.run(cluster, rounds, take_over=options["take_over"])
            finally:
                metrics.balancing.set(0)
                self._liveness.over("round")

    def _limits(self) -> MoveLimits:
        names = ("per_minute", "per_hour", "per_namespace", "at_once")
        moves = {name: self._options[f"moves_{name}"] for name in names}
        same = {name: self._options[name] for name in ("topics_at_once", "windows")}
        return MoveLimits(**moves, **same)
