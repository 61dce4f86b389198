"""A value of a scenario that does not go with others."""

from dataclasses import dataclass

from loadmanager.simulator.toml_lines import TomlPath


@dataclass(frozen=True, slots=True)
class Contradiction:
    """``fault`` follows the value in a message: "expected ...".

    ``because`` names the keys it was compared with, such as ``brokers.count`` for that of
    each class: where one of them is at fault itself, the contradiction says nothing.
    """

    at: TomlPath
    fault: str
    because: tuple[str, ...] = ()
