"""What keeps the broker of a sidecar in the cluster, whatever kind of broker it is."""

from collections.abc import Iterator
from typing import Protocol


class Agent(Protocol):
    """What keeps the broker of this sidecar in the cluster."""

    @property
    def registered(self) -> bool:
        """Whether the broker is in the cluster now, so that this sidecar may lead."""

    def unready(self) -> Iterator[str]:
        """Yield why no client should be sent to the broker."""

    async def run(self) -> None:
        """Live until cancelled, or until a membership ends after `leave`.

        Raises:
            ExceptionGroup: with `Displaced`: another sidecar took over this broker.
        """

    async def drain(self) -> None:
        """Return once the broker's bundles are with others, if they are to be."""

    async def leave(self, within_s: float) -> None:
        """Take the broker out in order."""

    async def serving_ended(self) -> None:
        """Return when the broker surely serves nothing that this session's locks protect."""
