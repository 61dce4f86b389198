"""Errors of scenarios and traces."""

from collections.abc import Sequence
from dataclasses import dataclass

from loadmanager.core.errors import LoadManagerError
from loadmanager.simulator.toml_lines import TomlPath


class ScenarioError(LoadManagerError):
    """A scenario or trace cannot be simulated. ``faults`` are all its faults, as texts.

    Each contains the file and the line, the value, and what was expected.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)

    def __reduce__(self) -> tuple[type["ScenarioError"], tuple[Sequence[str]]]:
        """Support pickling: worker processes raise it as well."""
        return type(self), (self.faults,)


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A contradiction between values. ``fault`` follows the value in a message: "expected ...".

    ``because`` are the keys that it was compared with, such as ``brokers.count`` for that of each
    class: if one of them is faulty itself, the contradiction is not reported.
    """

    at: TomlPath
    fault: str
    because: tuple[str, ...] = ()
