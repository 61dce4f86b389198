"""Resolves the broker that a lookup returns for a bundle: its owner, once it serves.

The owned lists say which broker holds which lock, and which of those bundles the broker has not
loaded yet. For its own broker a sidecar has better data: it controls it. But not one that
waits because another sidecar has registered that broker: its watch reports that.
"""

from collections.abc import Mapping
from typing import Protocol

from loadmanager.common.context import Context
from loadmanager.common.subscriptions import Subscriptions
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.ports.lookup import Owner


class OwnBundles(Protocol):
    @property
    def changes(self) -> Subscriptions: ...

    @property
    def handovers(self) -> Mapping[BundleId, BrokerId]: ...

    def serves(self, bundle: BundleId) -> bool:
        """Return whether the broker serves ``bundle`` and will continue."""


class OwnerResolver:
    """Resolves owners from the cluster state and from this sidecar's own agent.

    ``changes`` notifies whenever an answer may have changed.
    """

    def __init__(self, context: Context, own: OwnBundles) -> None:
        self._cluster_state = context.cluster_state
        self._me = context.identity
        self._own = own
        self.changes = Subscriptions()
        context.cluster_state.changes.subscribe(self.changes.notify)
        own.changes.subscribe(self.changes.notify)

    @property
    def version(self) -> int:
        return self._cluster_state.version + self._own.changes.version

    def owner(self, bundle: BundleId) -> Owner | None:
        holding = self._cluster_state.live_owner(bundle)
        if holding is None:
            return None
        if not (self._own.serves(bundle) if self._commands(holding.broker) else holding.serving):
            return None
        registration = self._cluster_state.brokers[holding.broker].registration
        return Owner(
            bundle=bundle,
            broker=holding.broker,
            urls=registration.urls,
            listeners=registration.advertised_listeners,
            fencing_token=holding.fencing_token,
            epoch=self._cluster_state.leader.epoch if self._cluster_state.leader else 0,
        )

    def coming(self, bundle: BundleId) -> BrokerId | None:
        """Return the target of ``bundle`` if it is under way, as far as known here.

        It is known once the target holds the lock, and earlier at the former owner, whose orders
        name the next owner.
        """
        holding = self._cluster_state.live_owner(bundle)
        if holding is not None and not self._commands(holding.broker):
            return None if holding.serving else holding.broker
        planned = self._own.handovers.get(bundle)
        if planned in self._cluster_state.brokers:
            return planned
        return None if holding is None else holding.broker

    def _commands(self, broker: BrokerId) -> bool:
        if broker != self._me.broker:
            return False
        return self._cluster_state.brokers[broker].registration.sidecar_url == self._me.sidecar_url
