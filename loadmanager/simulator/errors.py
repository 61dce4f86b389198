"""What is wrong with a scenario or a trace."""

from collections.abc import Sequence

from loadmanager.core.errors import LoadManagerError


class ScenarioError(LoadManagerError):
    """A scenario or trace cannot be simulated. ``faults`` are all its faults, one text each.

    Each names the file and the line, the value found there and what was expected.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)

    def __reduce__(self) -> tuple[type["ScenarioError"], tuple[Sequence[str]]]:
        """Return how to make it again: it comes from the process that read a trace, too."""
        return type(self), (self.faults,)
