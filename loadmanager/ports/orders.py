"""How the orders of one term are kept and carried out."""

from collections.abc import Callable, Mapping
from typing import Protocol

from loadmanager.core.bundle_task import TaskEvent
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.orders import OrderChanges, SplitOrder
from loadmanager.ports.coordination import SetData

Reported = Callable[[BundleId, TaskEvent, str], None]
"""What happened to the order of a bundle, and why."""


class StandingOrders(Protocol):
    """What is ordered now. The task controller alone uses it, one call at a time."""

    @property
    def assigned(self) -> Mapping[BundleId, BrokerId]:
        """Which broker is to own each bundle."""

    @property
    def splits(self) -> Mapping[BundleId, SplitOrder]:
        """Which bundles are to be split or merged, and how."""

    @property
    def known(self) -> bool:
        """Whether the other two are what stands: not at first, nor after a lost reply."""

    def follow(self, reported: Reported) -> None:
        """Have ``reported`` called with what becomes of orders and owners do not show."""

    async def read(self) -> None:
        """Find out what stands, from any leader; raises `Disconnected`."""

    async def write(self, changes: OrderChanges, rider: SetData | None = None, /) -> bool:
        """Order several things at once; what stands must be `known`.

        Returns whether the ``rider`` was written with them. It saves a request where orders are
        nodes and it fits; else it is False, and the rider is the caller's to write.

        Raises:
            Deposed: another sidecar leads; nothing was changed.
            CoordinationError: not all of it is ordered. What is, stands if that is `known`;
                if the reply was lost, nothing is known until `read`.
        """

    async def rewrite_changed(self) -> tuple[BrokerId, ...]:
        """Restore orders that others changed, and return their brokers; raises as `write`."""

    def close(self) -> None:
        """Order nothing more: the term is over."""
