"""The host and its clock."""

from collections.abc import Collection
from typing import Protocol

from loadmanager.core.load import HostUsage


class HostProbe(Protocol):
    """Measures the usage of the broker's host, container or process tree."""

    def sample(
        self,
        *,
        broker_process_id: int | None = None,
        broker_port: int = 0,
        neighbour_ports: Collection[int] = (),
    ) -> HostUsage:
        """Return the usage since the last call; rates are None at the first.

        ``neighbour_ports`` are those of other brokers that are registered with the same
        host name: they may run on this host, too.

        A counter that cannot be read leaves its resource None, is logged once, and
        never raises.
        """


class Clock(Protocol):
    """Time as the application sees it; tests and simulations bring their own."""

    def monotonic_s(self) -> float:
        """Return seconds on a clock that never jumps."""

    def wall_ms(self) -> int:
        """Return milliseconds since 1970, for people and logs, never for deadlines."""

    async def sleep(self, delay_s: float) -> None:
        """Wait for ``delay_s`` on the monotonic clock."""
