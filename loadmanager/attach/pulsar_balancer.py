"""Pulsar's own shedding and automatic splits: off while attach balances, then restored.

Two balancers undo each other's moves. The switches are dynamic settings, so no broker is
restarted. A value that others changed in the meantime is left unchanged.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Final
from urllib.parse import quote

from loadmanager.adapters.pulsar_admin import (
    PulsarAdmin,
    PulsarAdminError,
    RequestFailed,
    RightMissing,
)
from loadmanager.attach.discovery import (
    CONFIGURATION,
    ClusterReader,
    PulsarCluster,
    read_dynamic,
)
from loadmanager.attach.state import PriorSettings, State
from loadmanager.core.errors import LoadManagerError

_CHANGED_WITHIN_S: Final = 30.0


async def write_dynamic(admin: PulsarAdmin, url: str, key: str, value: str | None) -> None:
    where = f"{url}{CONFIGURATION}/{quote(key, safe='')}"
    if value is None:
        await admin.change("DELETE", where, timeout_s=_CHANGED_WITHIN_S)
    else:
        url = f"{where}/{quote(value, safe='')}"
        await admin.change("POST", url, timeout_s=_CHANGED_WITHIN_S)


SHEDDING: Final = "loadBalancerSheddingEnabled"
SWITCHES: Final = (SHEDDING, "loadBalancerAutoBundleSplitEnabled")
_OFF: Final = "false"
_PAUSE_S: Final = 1.0


class BalancerNotOff(LoadManagerError):
    """Pulsar's own balancer must not, or cannot, be switched off; the message says why."""


@dataclass(frozen=True, slots=True)
class PulsarBalancer:
    state: State
    settle_s: float = 10.0
    """Time within which brokers must apply a dynamic setting."""
    otherwise: str = "give --take-over"
    """The remedy, in the message of `BalancerNotOff`, if shedding is off without a controller."""

    async def begin(
        self, reader: ClusterReader, cluster: PulsarCluster, *, take_over: bool
    ) -> None:
        """Store the settings, then switch the balancer off on all brokers, by any of them.

        Settings that an earlier controller stored and did not restore are not replaced.

        Raises:
            BalancerNotOff: shedding was already switched off by others, or brokers do not apply the
                setting.
            StateUnusable: the settings cannot be stored; nothing was changed.
            PulsarAdminError: a setting cannot be read or changed.
        """
        dynamic = await _dynamic(reader)
        if await self.state.read() is None:
            if dynamic.get(SHEDDING) == _OFF and not take_over:
                raise BalancerNotOff(
                    f"{cluster.name}: {SHEDDING} is overridden with false, and not by a controller "
                    f"with the state {self.state.where()}: another one may balance this cluster; "
                    f"end it, or {self.otherwise}"
                )
            effective = {key: _alike(cluster, key) for key in SWITCHES}
            prior = {key: dynamic.get(key) for key in SWITCHES}
            await self.state.write(PriorSettings(dynamic=prior, effective=effective))
        for key in SWITCHES:
            if dynamic.get(key) != _OFF:
                await _write(reader, key, _OFF)
        late = await self._until(reader, dict.fromkeys(SWITCHES, _OFF))
        if late:
            raise BalancerNotOff(
                f"{cluster.name}: {'; '.join(late)} {self.settle_s:g} s after the order"
            )

    async def restore(self, reader: ClusterReader) -> tuple[str, ...]:
        """Restore all settings, each at any broker that accepts it; return one line for each.

        Raises:
            StateUnusable: the stored settings cannot be read or removed.
            PulsarAdminError: no broker accepts a setting; the others are restored, the message has
                the line of each, and the stored settings stay.
        """
        prior = await self.state.read()
        if prior is None:
            return (f"nothing to restore: {self.state.where()} does not exist",)
        dynamic, done = await _dynamic(reader), list[str]()
        failed: PulsarAdminError | None = None
        for key, value in prior.dynamic.items():
            now = dynamic.get(key)
            if now == value:
                done.append(f"{key}: {_shown(value)}, as before")
            elif now != _OFF:
                done.append(f"{key}: {_shown(now)}, as set by others; left unchanged")
            else:
                try:
                    await self._put_back(reader, key, value, prior.effective.get(key, ""))
                except PulsarAdminError as error:
                    failed = error
                    done.append(f"{key}: not restored: {error}")
                else:
                    done.append(f"{key}: {_shown(value)} again")
        if failed is not None:
            kind = RightMissing if isinstance(failed, RightMissing) else RequestFailed
            raise kind("; ".join(done)) from failed
        await self.state.remove()
        return tuple(done)

    async def _put_back(
        self, reader: ClusterReader, key: str, value: str | None, effective: str
    ) -> None:
        await _write(reader, key, value)
        if value is not None or not effective:
            return
        # Older brokers keep the value of a removed override until they restart.
        if await self._until(reader, {key: effective}):
            await _write(reader, key, effective)
            await self._until(reader, {key: effective})
            await _write(reader, key, None)

    async def _until(self, reader: ClusterReader, wanted: Mapping[str, str]) -> tuple[str, ...]:
        """Wait until all brokers that answer apply settings; return those that do not in time."""
        until_s = monotonic() + self.settle_s
        while True:
            reader.forget()
            cluster = await reader.read()
            late = tuple(
                f"{key} is {value} on {', '.join(brokers)}"
                for key, right in wanted.items()
                for value, brokers in cluster.differing(key).items()
                if value != right
            )
            if not late or monotonic() >= until_s:
                return late
            await asyncio.sleep(_PAUSE_S)


async def _dynamic(reader: ClusterReader) -> Mapping[str, str]:
    return await reader.at_any(partial(read_dynamic, reader.admin))


async def _write(reader: ClusterReader, key: str, value: str | None) -> None:
    await reader.at_any(lambda url: write_dynamic(reader.admin, url, key, value))


def switched_on(cluster: PulsarCluster) -> str:
    on = {key: cluster.differing(key).get("true") for key in SWITCHES}
    return "; ".join(
        f"{key} was switched on by others (true on {', '.join(brokers)})"
        for key, brokers in on.items()
        if brokers
    )


def _alike(cluster: PulsarCluster, key: str) -> str:
    values = cluster.differing(key)
    return next(iter(values)) if len(values) == 1 else ""


def _shown(value: str | None) -> str:
    return "not overridden" if value is None else f"overridden with {value}"
