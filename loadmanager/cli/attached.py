"""The actions of ``loadmanager attach`` once its options are parsed."""

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from loadmanager.adapters.pulsar_admin import Access, PulsarAdmin
from loadmanager.attach.balancing import Balancer
from loadmanager.attach.discovery import Addresses, discover
from loadmanager.attach.groups import Groups
from loadmanager.attach.mandate import Alone, Mandate
from loadmanager.attach.observation import Rules
from loadmanager.attach.prior_settings import State, StateUnusable, locked_state, state_file
from loadmanager.attach.quiet import Quiet
from loadmanager.attach.sampling import Sampler
from loadmanager.cli.attach_history import recording
from loadmanager.cli.attach_log import BalancerLog, PrintedLog, print_findings, print_window
from loadmanager.cli.attach_metrics import served_metrics, show_window
from loadmanager.cli.attach_page import AttachOverviews, served_page
from loadmanager.cli.attach_strategy import strategy_of
from loadmanager.core.move_limits import MoveBudget, MoveLimits
from loadmanager.ports import CoordinationError
from loadmanager.telemetry.attaching import AttachMetrics

if TYPE_CHECKING:
    from loadmanager.cli.attach_candidate import Candidate
    from loadmanager.core.leadership import Incumbent

_LAST_LOOK_S: Final = 120.0
_ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Attached:
    """One cluster: observed, examined, balanced, or restored."""

    _overviews: AttachOverviews

    def __init__(self, access: Access, options: Mapping[str, Any]) -> None:
        self._access = access
        self._options = options
        self._url: str = options["url"]

    async def run(self) -> int:
        """Run the requested action; return the exit code.

        Raises:
            LoadManagerError: it cannot be done; the message says why.
        """
        admin = PulsarAdmin(self._access)
        try:
            if self._options["restore"]:
                return await self._restore(admin)
            if self._options["pause"] or self._options["resume"]:
                return await self._pause(admin)
            balances = self._options["balance"]
            async with (
                served_metrics(self._options["metrics_port"]) as metrics,
                served_page(self._options["page"], balances=balances) as self._overviews,
            ):
                if balances:
                    return await self._balance(admin, metrics)
                return await self._observe(admin, metrics)
        finally:
            await admin.close()

    def _log(self, admin: PulsarAdmin) -> PrintedLog:
        return PrintedLog(admin.cost, self._options["as_json"])

    def _rules(self, *, move_partial: bool = True) -> Rules:
        return Rules(
            exclude=self._options["exclude"],
            move_non_persistent=self._options["move_non_persistent"],
            most_moves=self._options["most_moves"],
            move_partial=move_partial,
            split=self._options["split"],
            place_new=self._options["place_new"],
        )

    async def _observe(self, admin: PulsarAdmin, metrics: AttachMetrics) -> int:
        doctor = self._options["doctor"]
        strategy = strategy_of(self._options)
        sampler = Sampler(admin, Addresses.of(self._url), strategy.hosts)
        groups = Groups(admin, strategy)
        cluster = await discover(admin, self._url)
        await sampler.sample(cluster)
        with recording(self._options, cluster, strategy) as history:
            while True:
                await asyncio.sleep(self._options["interval_s"])
                cluster = await discover(admin, self._url)
                samples, missing = await sampler.sample(cluster)
                seen = await groups.observe(self._url, cluster, samples, missing, self._rules())
                if doctor:
                    return int(print_findings(seen))
                show_window(metrics, seen, "")
                self._overviews.round(seen, "")
                print_window(
                    seen,
                    admin.cost,
                    as_json=self._options["as_json"],
                    traffic=self._options["once"],
                )
                if history is not None:
                    history.round(seen, "")
                if self._options["once"]:
                    return 0

    async def _restore(self, admin: PulsarAdmin) -> int:
        cluster = await discover(admin, self._url)
        log = self._log(admin)
        async with self._idle_state(cluster.name) as state:
            for line in await Quiet(admin, state).restore(self._url):
                log.event(line)
        return 0

    @asynccontextmanager
    async def _idle_state(self, cluster: str) -> AsyncIterator[State]:
        """Give the state of a cluster on which no controller acts now."""
        if self._options["config"] is None:
            with locked_state(self._options["state_dir"], cluster) as state:
                yield state
            return
        async with self._candidate() as standing:
            if leader := await standing.leads():
                raise StateUnusable(f"{leader} balances {cluster}; expected no controller: end it")
            yield standing.state

    def _candidate(self) -> AbstractAsyncContextManager["Candidate"]:
        # Only here: it needs what sidecars need of libraries.
        from loadmanager.cli.attach_candidate import candidate

        return candidate(self._options["config"])

    async def _pause(self, admin: PulsarAdmin) -> int:
        cluster = await discover(admin, self._url)
        if self._options["config"] is None:
            await self._tell_pause(admin, state_file(self._options["state_dir"], cluster.name))
        else:
            async with self._candidate() as standing:
                await self._tell_pause(admin, standing.state)
        return 0

    async def _tell_pause(self, admin: PulsarAdmin, state: State) -> None:
        log = self._log(admin)
        if self._options["resume"]:
            await state.resume()
            log.event("not paused")
        else:
            at = datetime.now(tz=UTC).isoformat(timespec="seconds")
            await state.pause(f"paused by attach --pause at {at}")
            log.event("paused: nothing moves until attach --resume")

    async def _balance(self, admin: PulsarAdmin, metrics: AttachMetrics) -> int:
        options, stopping = self._options, asyncio.Event()
        strategy_of(options)  # Faults of the options are reported before anything is changed.
        for number in _ENDS:
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        cluster = await discover(admin, self._url)
        if stopping.is_set():
            return 0
        if options["config"] is not None:
            await self._balance_if_elected(admin, metrics, stopping)
            return 0
        with locked_state(options["state_dir"], cluster.name) as state:
            await self._led(admin, metrics, state, stopping, Alone())
        return 0

    async def _balance_if_elected(
        self, admin: PulsarAdmin, metrics: AttachMetrics, stopping: asyncio.Event
    ) -> None:
        from loadmanager.cli.attach_candidate import standing_until

        log, left = self._log(admin), None
        try:
            async with standing_until(self._options["config"], stopping) as standing:
                if standing is None:
                    return
                log.event(f"{standing.identity.broker} stands for election")
                self._overviews.waits = partial(_waits_for, standing)

                async def lead(mandate: Mandate, state: State) -> None:
                    log.event(f"{standing.identity.broker} leads term {mandate.epoch}")
                    await self._led(admin, metrics, state, stopping, mandate)

                try:
                    await standing.run(lead, stopping)
                finally:
                    left = await _left_by(standing, log)
        finally:
            if left is not None:
                await self._see_that_another_leads(admin, log, left)

    async def _see_that_another_leads(
        self, admin: PulsarAdmin, log: PrintedLog, left: "_LeftBy"
    ) -> None:
        """Wait until another candidate leads, and restore the settings if none is left.

        A candidate that crashed is listed until its session ends, like one that goes on.

        Raises:
            LoadManagerError: neither can be seen or done; the message says what to do.
        """
        log.event("waits until another candidate leads; else it restores Pulsar's settings")
        try:
            async with asyncio.timeout(_LAST_LOOK_S), self._candidate() as watching:
                if await watching.another_leads(left.leader):
                    return
                for line in await Quiet(admin, watching.state).restore(self._url):
                    log.event(line)
        except TimeoutError:
            raise StateUnusable(
                f"Pulsar's settings are not restored, and no candidate leads after "
                f"{_LAST_LOOK_S:g} s; expected one that does: end all, and run loadmanager attach "
                "--restore"
            ) from None

    async def _led(
        self,
        admin: PulsarAdmin,
        metrics: AttachMetrics,
        state: State,
        stopping: asyncio.Event,
        mandate: Mandate,
    ) -> None:
        """Balance until asked to stop."""
        options, log = self._options, self._log(admin)
        strategy = strategy_of(options)
        cluster = await discover(admin, self._url)
        with (
            recording(options, cluster, strategy, mandate.epoch) as history,
            self._overviews.steering.open(state, log.event),
        ):
            balancer = Balancer(
                admin=admin,
                url=self._url,
                rules=self._rules(move_partial=False),
                budget=MoveBudget(self._limits()),
                interval_s=options["interval_s"],
                settle_s=options["settle_s"],
                quiet=Quiet(admin, state),
                log=BalancerLog(
                    printed=log,
                    metrics=metrics,
                    overviews=self._overviews,
                    strategy=strategy,
                    history=history,
                ),
                stopping=stopping,
                mandate=mandate,
                strategy=strategy,
                course=self._overviews.course,
            )
            rounds = 1 if options["once"] else None
            metrics.balancing.set(1)
            try:
                await balancer.run(cluster, rounds, take_over=options["take_over"])
            finally:
                metrics.balancing.set(0)
                self._overviews.end()

    def _limits(self) -> MoveLimits:
        return MoveLimits(
            per_minute=self._options["moves_per_minute"],
            per_hour=self._options["moves_per_hour"],
            per_namespace=self._options["moves_per_namespace"],
            at_once=self._options["moves_at_once"],
            windows=self._options["windows"],
        )


@dataclass(frozen=True, slots=True)
class _LeftBy:
    """Pulsar's settings are not restored; ``leader`` led when this candidate ended."""

    leader: "Incumbent | None"


def _waits_for(standing: "Candidate") -> str:
    leader = standing.cluster_state.incumbent
    if leader is None or leader.broker == standing.identity.broker:
        return ""
    return f"{leader.broker} leads, and its page shows the cluster; this candidate waits"


async def _left_by(standing: "Candidate", log: PrintedLog) -> _LeftBy | None:
    """Return the candidate that left Pulsar's settings to another, None if they are restored."""
    try:
        if await standing.state.read() is None:
            return None
        return _LeftBy(await standing.incumbent())
    except (StateUnusable, CoordinationError) as error:
        log.event(
            f"whether Pulsar's settings are restored is not known ({error}); if no other "
            "candidate is there, run loadmanager attach --restore"
        )
        return None
