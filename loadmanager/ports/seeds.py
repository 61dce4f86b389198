"""Where a leader without a past finds what history says of bundles."""

from typing import Protocol

from loadmanager.core.errors import LoadManagerError
from loadmanager.core.seed import Seed


class SeedUnreadable(LoadManagerError):
    """There is no seed, or none that can be used; the text says where and why."""


class SeedSource(Protocol):
    """A seed that may be read each time a term begins."""

    async def read(self, hour: int) -> Seed | None:
        """Return what the seed says of an hour of the week, None if none is configured.

        Raises:
            SeedUnreadable: it cannot be read.
        """


class NoSeed:
    """For a sidecar that is given none."""

    async def read(self, hour: int) -> Seed | None:  # noqa: ARG002 - there is nothing to read
        """Return None."""
        return None
