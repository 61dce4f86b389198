from collections.abc import Iterator
from typing import Protocol


class Agent(Protocol):
    @property
    def registered(self) -> bool:
        """Whether the broker is registered now, so that this sidecar may lead."""

    def unready(self) -> Iterator[str]: ...

    async def run(self) -> None:
        """Run until cancelled, or until a membership ends after `leave`.

        Raises `ExceptionGroup`: with `Displaced`: another sidecar took over this broker.
        """

    async def drain(self) -> None:
        """Wait until the broker's bundles are handed over, if required."""

    async def leave(self, within_s: float) -> None: ...

    async def serving_ended(self) -> None:
        """Wait until the broker serves no bundle protected by this session's locks."""
