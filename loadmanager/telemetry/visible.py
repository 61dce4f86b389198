"""Texts from outside are shown without what moves a cursor or turns text round."""

import re
from typing import Any, Final, TextIO

_CONTROLS: Final = re.compile(
    r"[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    r"\ud800-\udfff]"
)


def visible(value: Any) -> Any:
    """Return a value with all of that escaped in its texts; lines stay lines."""
    match value:
        case str():
            return _CONTROLS.sub(lambda one: ascii(one[0])[1:-1], value)
        case dict():
            return {visible(key): visible(one) for key, one in value.items()}
        case list() | tuple():
            return [*map(visible, value)]
    return value


class VisibleStream:
    """A stream that escapes what is written; programs' own sequences go to ``beneath``."""

    def __init__(self, beneath: TextIO) -> None:
        self.beneath = beneath

    def write(self, text: str) -> int:
        return self.beneath.write(visible(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.beneath, name)


def beneath(stream: TextIO) -> TextIO:
    return getattr(stream, "beneath", stream)
