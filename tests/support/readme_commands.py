"""README's fenced commands, with where each is run, so that editing README changes the test.

A fence's info string says it, after the language: ``on=`` names a host (``each-broker`` for all
brokers'; ``clone`` is this machine, in the project's folder), ``runs=until-stopped`` is a command
that does not end by itself, ``file=`` is a file that each broker's host gets. What README says of
broker-1 holds on each other broker's host with its name.
"""

import re
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Fence:
    """One fenced block: its language, what its info string says besides, and its text."""

    language: str
    options: dict[str, str]
    text: str


def fences(readme: Path) -> list[Fence]:
    """Return all fenced blocks of a Markdown file that name a language, in their order."""
    found = []
    for language, words, text in _FENCE.findall(readme.read_text(encoding="utf-8")):
        options = dict(word.split("=", 1) for word in words.split())
        found.append(Fence(language, options, text))
    return found
