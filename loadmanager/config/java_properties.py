"""Reads texts in the format of Java's ``Properties.load``, in which Pulsar's files are written."""

import re
from collections.abc import Iterator
from typing import Final

_BLANK: Final = " \t\f"
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_PAIR: Final = re.compile(r"\A((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Of a key given twice the last value counts. Raises `ValueError`, which names the line."""
    found = {}
    for number, line in _logical_lines(text):
        [pair] = _PAIR.findall(line)
        try:
            key, value = map(_unescaped, pair)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        found[key] = value
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line with its number, joined with the lines that continue it.

    A line is continued if it ends with an odd number of backslashes. A comment is not.
    """
    joined, first = "", 0
    for number, full in enumerate(_LINE_END.split(text), 1):
        line = full.lstrip(_BLANK)
        if not joined:
            if not line or line[0] in "#!":
                continue
            first = number
        continued = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        joined += line[:-1] if continued else line
        if not continued:
            yield first, joined
            joined = ""
    if joined:
        yield first, joined


def _unescaped(text: str) -> str:
    plain = _ESCAPE.sub(_character, text)
    try:
        # Two escapes may be the halves of one character.
        return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise ValueError(f"{text!r} has half a character; expected both of its escapes") from None


def _character(escape: re.Match[str]) -> str:
    code, plain = escape.groups()
    if code:
        return chr(int(code, 16))
    if plain == "u":
        what = escape.string[escape.start() : escape.start() + 6]
        raise ValueError(rf"{what!r}; expected four hexadecimal digits after \u")
    return _CONTROLS.get(plain, plain)
