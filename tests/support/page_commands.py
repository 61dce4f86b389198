"""A page's fenced commands, with where each is run, so that editing the page changes the test.

A comment on the line before a fence says it, such as ``<!-- on=each-broker -->``. ``on=`` names a
host (``each-broker`` for all brokers'; ``clone`` is this machine, in the project's folder),
``runs=until-stopped`` is a command that does not end by itself, ``file=`` is a file that each
broker's host gets. What the page says of broker-1 holds on each other broker's host with its name.
"""

import re
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^<!-- (\w+=[^\n]*) -->\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Fence:
    """One fenced block: its language, what the comment before it says, and its text."""

    language: str
    options: dict[str, str]
    text: str


def fences(page: Path) -> list[Fence]:
    found = []
    for words, language, text in _FENCE.findall(page.read_text(encoding="utf-8")):
        options = dict(word.split("=", 1) for word in words.split())
        found.append(Fence(language, options, text))
    return found
