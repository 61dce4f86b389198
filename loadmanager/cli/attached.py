"""What ``loadmanager attach`` does with a cluster once its options are understood."""

import asyncio
import signal
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from loadmanager.adapters.pulsar_admin import Access, PulsarAdmin
from loadmanager.attach.balancing import Balancer
from loadmanager.attach.discovery import Addresses, discover
from loadmanager.attach.groups import Groups
from loadmanager.attach.observation import Rules
from loadmanager.attach.prior_settings import locked_state, state_file
from loadmanager.attach.quiet import Quiet
from loadmanager.attach.sampling import Sampler
from loadmanager.cli.attach_history import RecordedLog, recording
from loadmanager.cli.attach_output import DecisionLog, print_findings, print_window
from loadmanager.core.move_limits import MoveBudget, MoveLimits

_ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Attached:
    """One cluster: observed, examined, balanced, or restored."""

    def __init__(self, access: Access, options: Mapping[str, Any]) -> None:
        self._access = access
        self._options = options
        self._url: str = options["url"]

    async def run(self) -> int:
        """Do what the options ask for; return the exit code.

        Raises:
            LoadManagerError: it cannot be done; the message says why.
        """
        admin = PulsarAdmin(self._access)
        try:
            if self._options["restore"]:
                return await self._restore(admin)
            if self._options["pause"] or self._options["resume"]:
                return await self._pause(admin)
            if self._options["balance"]:
                return await self._balance(admin)
            return await self._observe(admin)
        finally:
            await admin.close()

    def _rules(self, *, move_partial: bool = True) -> Rules:
        return Rules(
            exclude=self._options["exclude"],
            move_non_persistent=self._options["move_non_persistent"],
            most_moves=self._options["most_moves"],
            move_partial=move_partial,
            split=self._options["split"],
        )

    async def _observe(self, admin: PulsarAdmin) -> int:
        doctor = self._options["doctor"]
        sampler, groups = Sampler(admin, Addresses.of(self._url)), Groups(admin)
        cluster = await discover(admin, self._url)
        await sampler.sample(cluster)
        with recording(self._options, cluster) as history:
            while True:
                await asyncio.sleep(self._options["interval_s"])
                cluster = await discover(admin, self._url)
                samples, missing = await sampler.sample(cluster)
                seen = await groups.observe(self._url, cluster, samples, missing, self._rules())
                if doctor:
                    return int(print_findings(seen))
                print_window(seen, admin.cost, as_json=self._options["as_json"])
                if history is not None:
                    history.round(seen, "")
                if self._options["once"]:
                    return 0

    async def _restore(self, admin: PulsarAdmin) -> int:
        cluster = await discover(admin, self._url)
        log = DecisionLog(admin.cost, self._options["as_json"])
        with locked_state(self._options["state_dir"], cluster.name) as state:
            for line in await Quiet(admin, state).restore(self._url):
                log.event(line)
        return 0

    async def _pause(self, admin: PulsarAdmin) -> int:
        cluster = await discover(admin, self._url)
        log = DecisionLog(admin.cost, self._options["as_json"])
        state = state_file(self._options["state_dir"], cluster.name)
        if self._options["resume"]:
            await state.resume()
            log.event(f"{cluster.name}: not paused")
        else:
            at = datetime.now(tz=UTC).isoformat(timespec="seconds")
            await state.pause(f"paused by attach --pause at {at}")
            log.event(f"{cluster.name}: paused; nothing moves until attach --resume")
        return 0

    async def _balance(self, admin: PulsarAdmin) -> int:
        options, stopping = self._options, asyncio.Event()
        for number in _ENDS:
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        limits = MoveLimits(
            per_minute=options["moves_per_minute"],
            per_hour=options["moves_per_hour"],
            per_namespace=options["moves_per_namespace"],
            at_once=options["moves_at_once"],
            windows=options["windows"],
        )
        cluster = await discover(admin, self._url)
        if stopping.is_set():
            return 0
        log = DecisionLog(admin.cost, options["as_json"])
        with (
            locked_state(options["state_dir"], cluster.name) as state,
            recording(options, cluster) as history,
        ):
            balancer = Balancer(
                admin=admin,
                url=self._url,
                rules=self._rules(move_partial=False),
                budget=MoveBudget(limits),
                interval_s=options["interval_s"],
                settle_s=options["settle_s"],
                quiet=Quiet(admin, state),
                log=log if history is None else RecordedLog(log, history),
                stopping=stopping,
            )
            rounds = 1 if options["once"] else None
            await balancer.run(cluster, rounds, take_over=options["take_over"])
        return 0
