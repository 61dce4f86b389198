from collections.abc import Callable, Mapping
from typing import Protocol

from loadmanager.core.bundle_task import Pause, TaskEvent
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.orders import OrderChanges, SplitOrder
from loadmanager.ports.coordination import SetData

Reported = Callable[[BundleId, TaskEvent, str, Pause | None], None]
"""What happened to the order of a bundle, why, and how long its clients waited, if known."""


class StandingOrders(Protocol):
    """The standing orders. Only the task controller uses them, one call at a time."""

    @property
    def assigned(self) -> Mapping[BundleId, BrokerId]: ...

    @property
    def splits(self) -> Mapping[BundleId, SplitOrder]:
        """The bundles that are to be split or merged, and how."""

    @property
    def known(self) -> bool:
        """Whether the standing orders are known; False initially and after a lost reply."""

    def follow(self, reported: Reported) -> None:
        """Call ``reported`` with outcomes of orders that owners do not show."""

    async def read(self) -> None: ...

    async def write(self, changes: OrderChanges, extra_write: SetData | None = None, /) -> bool:
        """Write several changes of orders; the standing orders must be `known`.

        Returns whether the ``extra_write`` was written with them. It saves a request where orders
        are nodes and it fits; else it is False, and the caller has to write it.

        Raises:
            Deposed: another sidecar leads; nothing was changed.
            CoordinationError: not all of it is ordered. What is, stands if that is `known`;
                if the reply was lost, nothing is known until `read`.
        """

    async def rewrite_changed(self) -> tuple[BrokerId, ...]:
        """Restore orders that others changed, and return their brokers; raises as `write`."""

    def close(self) -> None:
        """Write no more orders: the term is over."""
