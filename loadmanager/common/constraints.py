"""Isolation policies, anti-affinity groups and failure domains, kept current by watches.

Unreadable content is left out, counted and logged. An isolation policy that becomes unreadable
keeps its last content, because without it a namespace could be placed on any broker.
"""

from collections.abc import Sequence
from typing import Any

import structlog

from loadmanager.common.context import Context
from loadmanager.common.watching import Subscriptions, WatchedFolder, readable
from loadmanager.core import znodes
from loadmanager.core.ids import BrokerId, Namespace, parse_namespace
from loadmanager.core.policies import IsolationPolicy, Policies
from loadmanager.core.wire.policies import (
    decode_anti_affinity,
    decode_failure_domain,
    decode_isolation,
)
from loadmanager.ports.coordination import Node, Watch

log = structlog.get_logger()

_READ_POLL_S = 1.0


class Constraints:
    def __init__(self, context: Context, cluster: str) -> None:
        self._coordination = context.coordination
        self._metrics = context.metrics
        self._troubles = context.troubles
        self._isolation_path = znodes.isolation_policies(cluster)
        self._isolation: dict[str, IsolationPolicy] = {}
        self._isolation_read = False
        self._isolation_watch: Watch | None = None
        self._domains = WatchedFolder[tuple[BrokerId, ...]](
            context.coordination,
            znodes.failure_domains(cluster),
            decode=lambda name, node: decode_failure_domain(
                f"{znodes.failure_domains(cluster)}/{name}", node.data
            ),
            changed=self._anything_changed,
            completed=self._anything_changed,
            malformed=lambda: self._refused("failure_domain"),
        )
        self._groups: dict[str, WatchedFolder[str]] = {}
        self._tenants_watch: Watch | None = None
        self._tenants_listed = False
        self._policies: Policies | None = None
        self._changes = Subscriptions()

    def open(self) -> None:
        self._isolation_watch = self._coordination.watch(self._isolation_path, self._on_isolation)
        self._domains.open()
        self._tenants_watch = self._coordination.watch_children(
            znodes.LOCAL_POLICIES, self._tenants_changed
        )

    def close(self) -> None:
        for watch in (self._isolation_watch, self._tenants_watch):
            if watch:
                watch.close()
        self._troubles.pop(self._isolation_path, None)
        for folder in self._folders:
            folder.close()

    @property
    def _folders(self) -> Sequence[WatchedFolder[Any]]:
        return (self._domains, *self._groups.values())

    @property
    def complete(self) -> bool:
        read = self._isolation_read and self._tenants_listed
        return read and all(folder.complete for folder in self._folders)

    async def read(self) -> None:
        """Wait until everything has been read, which decisions require."""
        while not self.complete:
            await self._changes.wait(_READ_POLL_S)

    @property
    def policies(self) -> Policies:
        """All current policies. A broker in two failure domains belongs to the first by name."""
        if self._policies is None:
            self._policies = Policies(
                isolation=dict(self._isolation),
                anti_affinity={
                    Namespace(f"{tenant}/{name}"): group
                    for tenant, folder in self._groups.items()
                    for name, group in folder.values.items()
                    if group
                },
                domains={
                    broker: name
                    for name, brokers in sorted(self._domains.values.items(), reverse=True)
                    for broker in brokers
                },
            )
        return self._policies

    def _anything_changed(self, *_: object) -> None:
        self._policies = None
        self._changes.notify()

    def _on_isolation(self, node: Node | None) -> None:
        self._isolation_read = True
        if node is None or not node.data:
            self._isolation = {}
        else:
            with readable(self._isolation_path, self._metrics, "isolation"):
                self._isolation = decode_isolation(self._isolation_path, node.data)
        self._troubles.pop(self._isolation_path, None)
        self._anything_changed()
        if why := self.policies.refusals:
            self._troubles[self._isolation_path] = why
            log.warning("isolation.policies.refused", why=why)
            self._metrics.malformed("isolation")

    def _refused(self, kind: str) -> None:
        self._metrics.malformed(kind)
        self._anything_changed()

    def _tenants_changed(self, names: tuple[str, ...]) -> None:
        self._tenants_listed = True
        for tenant in self._groups.keys() - set(names):
            self._groups.pop(tenant).close()
        for tenant in names:
            if tenant not in self._groups:
                self._groups[tenant] = folder = self._groups_of(tenant)
                folder.open()
        self._anything_changed()

    def _groups_of(self, tenant: str) -> WatchedFolder[str]:
        def read(name: str, node: Node) -> str:
            path = znodes.local_policies(parse_namespace(f"{tenant}/{name}"))
            # A folder of the older, cluster-qualified names holds nothing itself.
            return decode_anti_affinity(path, node.data) if node.data else ""

        return WatchedFolder[str](
            self._coordination,
            f"{znodes.LOCAL_POLICIES}/{tenant}",
            decode=read,
            changed=self._anything_changed,
            completed=self._anything_changed,
            malformed=lambda: self._refused("local_policies"),
        )
