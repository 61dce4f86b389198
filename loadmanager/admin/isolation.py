"""Isolation policies, as people set them and ask for them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import structlog

from loadmanager.common.bundle_names import check_cluster
from loadmanager.common.context import Context
from loadmanager.common.documents import Documents, told
from loadmanager.core import znodes
from loadmanager.core.ids import BrokerId, BundleId, Namespace, belongs_to_a_broker, namespace_of
from loadmanager.core.policies import IsolationPolicy
from loadmanager.core.wire import decode_isolation
from loadmanager.core.wire.fields import parse_object, to_json
from loadmanager.leader.leadership import Leadership
from loadmanager.ports import IsolatedBroker, LookupRefused, Missing, UnloadService

log = structlog.get_logger()

_SEEN_WITHIN_S: Final = 5.0
_LOOK_S: Final = 0.05


class IsolationRequests:
    """The application's side of `IsolationService`.

    Args:
        parts: of this sidecar.
        leading: has the leader's term.
        unloads: moves what a new policy does not let stay.
        cluster: whose policies they are.
    """

    def __init__(
        self, context: Context, leading: Leadership, unloads: UnloadService, cluster: str
    ) -> None:
        self._context = context
        self._leading = leading
        self._unloads = unloads
        self._documents = Documents(context.coordination)
        self._cluster = cluster
        self._path = znodes.isolation_policies(cluster)

    async def policies(self, cluster: str) -> Mapping[str, Any]:
        """Return all policies by name; see `IsolationService`."""
        check_cluster(cluster, self._cluster)
        return self._parsed(await self._documents.read(self._path))

    async def put(self, cluster: str, name: str, policy: Mapping[str, Any]) -> None:
        """Set a policy, and move what it does not let stay; see `IsolationService`."""
        check_cluster(cluster, self._cluster)
        scope = policy.get("unload_scope") or "changed"
        if scope != "none":
            self._leading.require_term()
        former: dict[str, Any] = {}

        def edit(data: bytes | None) -> bytes:
            nonlocal former
            former = self._parsed(data)
            return to_json({**former, name: dict(policy)})

        await self._documents.change(self._path, edit)
        log.info("isolation.policy.set", policy=name)
        if scope != "none":
            old = self._read(former).get(name) if scope == "changed" else None
            await self._move_away(name, old, self._read({name: dict(policy)})[name])

    async def remove(self, cluster: str, name: str) -> None:
        """Remove a policy; see `IsolationService`."""
        check_cluster(cluster, self._cluster)

        def edit(data: bytes | None) -> bytes:
            found = self._parsed(data)
            if name not in found:
                raise Missing(f"isolation policy {name} does not exist")
            return to_json({one: policy for one, policy in found.items() if one != name})

        await self._documents.change(self._path, edit)
        log.info("isolation.policy.removed", policy=name)

    async def brokers(self, cluster: str) -> Sequence[IsolatedBroker]:
        """Return which policies are about each registered broker; see `IsolationService`."""
        check_cluster(cluster, self._cluster)
        policies = self._read(self._parsed(await self._documents.read(self._path)))
        return [
            IsolatedBroker(broker, name, _matches(policy.primary, broker), policy.namespaces)
            for broker in sorted(self._context.cluster_state.brokers)
            for name, policy in sorted(policies.items())
            if _lets(policy, broker)
        ]

    async def _move_away(
        self, name: str, old: IsolationPolicy | None, new: IsolationPolicy
    ) -> None:
        """Move what the policy is newly about and does not let stay, one after the other."""
        leaving = list(self._leaving(old, new))
        if not leaving or not await self._until_seen(name, new):
            return
        for bundle in leaving:
            namespace, range_text = namespace_of(bundle), bundle.rpartition("/")[2]
            try:
                await self._unloads.unload(namespace, range_text, None)
            except LookupRefused as error:
                # The policy stands: the bundle can be unloaded again by hand.
                log.warning("isolation.bundle.kept", bundle=bundle, policy=name, why=str(error))

    def _leaving(self, old: IsolationPolicy | None, new: IsolationPolicy) -> Iterator[BundleId]:
        for bundle, holding in sorted(self._context.cluster_state.owners.items()):
            namespace = namespace_of(bundle)
            if belongs_to_a_broker(bundle) or not _is_new(old, new, namespace):
                continue
            if not _lets(new, holding.broker):
                yield bundle

    async def _until_seen(self, name: str, policy: IsolationPolicy) -> bool:
        """Wait until this leader decides by the policy; False if it does not soon."""
        clock = self._context.clock
        deadline_s = clock.monotonic_s() + _SEEN_WITHIN_S
        while clock.monotonic_s() < deadline_s:
            leader_term = self._leading.leader_term
            if leader_term is None:
                return False
            if leader_term.look().view.policies.isolation.get(name) == policy:
                return True
            await clock.sleep(_LOOK_S)
        return False

    def _read(self, document: Mapping[str, Any]) -> dict[str, IsolationPolicy]:
        with told(self._path, "read"):
            return decode_isolation(self._path, to_json(document))

    def _parsed(self, data: bytes | None) -> dict[str, Any]:
        with told(self._path, "read"):
            return parse_object(self._path, data) if data else {}


def _is_new(old: IsolationPolicy | None, new: IsolationPolicy, namespace: Namespace) -> bool:
    """Say whether a policy is about a namespace, and was not, or with other primaries."""
    was = old is not None and old.primary == new.primary and old.governs(namespace)
    return new.governs(namespace) and not was


def _lets(policy: IsolationPolicy, broker: BrokerId) -> bool:
    return _matches((*policy.primary, *policy.secondary), broker)


def _matches(patterns: tuple[str, ...], broker: BrokerId) -> bool:
    host = broker.rpartition(":")[0]
    return any(re.fullmatch(pattern, host) for pattern in patterns)
