"""The agent of a broker: keeps it registered in the cluster, whatever its kind."""

from collections.abc import Iterator
from typing import Protocol


class Agent(Protocol):
    """Keeps the broker of this sidecar in the cluster."""

    @property
    def registered(self) -> bool:
        """Whether the broker is in the cluster now, so that this sidecar may lead."""

    def unready(self) -> Iterator[str]:
        """Yield the reasons why no client should be sent to the broker."""

    async def run(self) -> None:
        """Run until cancelled, or until a membership ends after `leave`.

        Raises:
            ExceptionGroup: with `Displaced`: another sidecar took over this broker.
        """

    async def drain(self) -> None:
        """Return once the broker's bundles are handed over, if they are to be."""

    async def leave(self, within_s: float) -> None:
        """Deregister the broker."""

    async def serving_ended(self) -> None:
        """Return once the broker serves nothing that this session's locks protect."""
