"""The leader's copy of Pulsar's bundles and policies in loadmanager's own nodes.

The boundaries of a namespace are read again when a broker lists a bundle that is not in them,
as after a split or for a new namespace. So a namespace is copied once a broker serves one of
its bundles.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import structlog

from loadmanager.adapters.pulsar_admin import answer_of
from loadmanager.adapters.pulsar_admin.lookups import (
    read_anti_affinity_group,
    read_boundaries,
    read_failure_domains,
    read_isolation_text,
)
from loadmanager.common.context import Context
from loadmanager.common.documents import Documents
from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import LoadManagerError, MalformedContent
from loadmanager.core.fields import to_json
from loadmanager.core.ids import BundleId, Namespace, belongs_to_a_broker, namespace_of
from loadmanager.core.wire.policies import (
    decode_anti_affinity,
    encode_boundaries,
    with_anti_affinity,
)
from loadmanager.pulsar_sidecar.broker import PulsarBroker

log = structlog.get_logger()

CHECK_EVERY_S: Final = 5.0
POLICIES_EVERY_S: Final = 30.0
GROUPS_EVERY_S: Final = 300.0
_LEAST_PAUSE_S: Final = 1.0
_PARALLEL: Final = 8
_LOG_EVERY_S: Final = 60.0


@dataclass(slots=True, eq=False)
class Importer:
    """Copies boundaries, anti-affinity groups, isolation policies and failure domains from Pulsar.

    ``cluster`` is the name of the cluster in loadmanager's configuration, which the copies of
    isolation policies and failure domains are stored under.
    """

    context: Context
    broker: PulsarBroker
    cluster: str
    _documents: Documents = field(init=False)
    _policies_due_s: float = field(default=float("-inf"), init=False)
    _group_due_s: dict[Namespace, float] = field(default_factory=dict, init=False)
    _log_again_s: float = field(default=float("-inf"), init=False)

    def __post_init__(self) -> None:
        self._documents = Documents(self.context.coordination)

    async def run(self) -> None:
        """Import until cancelled; errors are logged, and leave the existing copies unchanged."""
        clock, changes = self.context.clock, self.context.cluster_state.owner_changes
        while True:
            try:
                with answer_of(self.broker.url):
                    await self.import_due()
            except LoadManagerError as error:
                self._log_failure(str(error) or type(error).__name__)
            await clock.sleep(_LEAST_PAUSE_S)
            await changes.wait(CHECK_EVERY_S)

    async def import_due(self) -> None:
        now_s, failed = self.context.clock.monotonic_s(), list[BaseException]()
        if now_s >= self._policies_due_s:
            try:
                await self._import_policies()
                self._policies_due_s = now_s + POLICIES_EVERY_S
            except LoadManagerError as error:
                failed.append(error)  # Boundaries are imported nevertheless.
        listed = list(self.context.cluster_state.owners)
        stale = await self._unknown(listed)
        for name in {namespace_of(one) for one in listed if not belongs_to_a_broker(one)}:
            self._group_due_s.setdefault(name, float("-inf"))
        due = stale | {name for name, at_s in self._group_due_s.items() if at_s <= now_s}
        parallel = asyncio.Semaphore(_PARALLEL)

        async def bounded(namespace: Namespace) -> None:
            async with parallel:
                if await self._import(namespace):
                    self._group_due_s[namespace] = now_s + GROUPS_EVERY_S
                else:
                    self._group_due_s.pop(namespace, None)

        ended = await asyncio.gather(*map(bounded, sorted(due)), return_exceptions=True)
        for one in (*failed, *ended):
            if one is not None:
                raise one

    async def _unknown(self, bundles: Iterable[BundleId]) -> set[Namespace]:
        found: set[Namespace] = set()
        for bundle in bundles:
            namespace = namespace_of(bundle)
            if namespace in found or belongs_to_a_broker(bundle):
                continue
            try:
                boundaries = await self.context.cluster_state.boundaries(namespace)
            except MalformedContent:
                boundaries = None
            if boundaries is None or bundle not in boundaries:
                found.add(namespace)
        return found

    async def _import(self, namespace: Namespace) -> bool:
        """Copy boundaries and group of a namespace; return whether it exists."""
        admin, url, path = self.broker.admin, self.broker.url, znodes.local_policies(namespace)
        found = await read_boundaries(admin, url, namespace)
        if found is None:
            return False  # It was deleted; brokers will stop listing its bundles.
        group = await read_anti_affinity_group(admin, url, namespace)

        def edit(data: bytes | None) -> bytes:
            return _entered(path, found, group, data)

        await self._documents.change(path, edit)
        await self.context.cluster_state.reread_boundaries(namespace)
        return True

    async def _import_policies(self) -> None:
        asked = (self.broker.admin, self.broker.url, self.broker.cluster)
        isolation, _ = await read_isolation_text(*asked)
        await self._write(znodes.isolation_policies(self.cluster), isolation.encode())
        folder, domains = znodes.failure_domains(self.cluster), await read_failure_domains(*asked)
        for name in sorted({*domains, *await self._documents.names(folder)}):
            await self._write(
                f"{folder}/{name}", to_json(domains[name]) if name in domains else None
            )

    async def _write(self, path: str, data: bytes | None) -> None:
        await self._documents.change(path, lambda _: data)

    def _log_failure(self, why: str) -> None:
        now_s = self.context.clock.monotonic_s()
        if now_s >= self._log_again_s:
            self._log_again_s = now_s + _LOG_EVERY_S
            log.warning("pulsar.import.failed", why=why)


def _entered(path: str, found: Boundaries, group: str, data: bytes | None) -> bytes:
    """Return local policies with these boundaries and group; unreadable ones are replaced."""
    try:
        if data and decode_anti_affinity(path, data) == group:
            return encode_boundaries(found, data)
        return with_anti_affinity(path, encode_boundaries(found, data), group)
    except MalformedContent:
        return with_anti_affinity(path, encode_boundaries(found), group)
