"""Errors of scenarios and traces."""

from collections.abc import Sequence

from loadmanager.core.errors import LoadManagerError


class ScenarioError(LoadManagerError):
    """A scenario or trace cannot be simulated. ``faults`` are all its faults, as texts.

    Each contains the file, the key or the line, the value, and what was expected.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)

    def __reduce__(self) -> tuple[type["ScenarioError"], tuple[Sequence[str]]]:
        """Support pickling: worker processes raise it as well."""
        return type(self), (self.faults,)
