"""What is wrong with a configuration."""

from collections.abc import Sequence

from loadmanager.core.errors import LoadManagerError


class ConfigError(LoadManagerError):
    """The configuration cannot be run with. ``faults`` are all of its faults, one text each.

    Each names the place, the value found there and what was expected; a secret's value
    is never in it.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)
