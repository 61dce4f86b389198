from collections.abc import Sequence
from typing import NamedTuple, Self

from loadmanager.core.errors import LoadManagerError


class ConfigError(LoadManagerError):
    """The configuration cannot be run with. ``faults`` are all of its faults, one text each.

    Each names the place, the value found there and what was expected; a secret's value
    is never in it.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


class Contradiction(NamedTuple):
    """A key whose value conflicts with that of another key.

    ``because`` are the other keys as ``(section, key)``: it is not reported where one of them
    is wrong itself.
    """

    section: str
    key: str
    expected: str
    because: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, name: str, expected: str, *because: str) -> Self:
        """Return the contradiction of a key named ``section.key`` with others named so."""
        section, _, key = name.partition(".")
        others = tuple(
            (other, its_key) for other, _, its_key in (o.partition(".") for o in because)
        )
        return cls(section, key, expected, others)
