"""What is wrong with a scenario or a trace."""

from collections.abc import Sequence
from dataclasses import dataclass

from loadmanager.core.errors import LoadManagerError
from loadmanager.simulator.toml_lines import TomlPath


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


@dataclass(frozen=True, slots=True)
class Contradiction:
    """``fault`` follows the value in a message: "expected ...".

    ``because`` names the keys it was compared with, such as ``brokers.count`` for that of
    each class: where one of them is at fault itself, the contradiction says nothing.
    """

    at: TomlPath
    fault: str
    because: tuple[str, ...] = ()
