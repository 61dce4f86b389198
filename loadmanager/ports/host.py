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
    def monotonic_s(self) -> float: ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970, for people and logs, never for deadlines."""

    async def sleep(self, delay_s: float) -> None: ...
