"""The line of each value in a TOML document, which `tomllib` does not report."""

import re
import tomllib
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

TomlPath = tuple[str | int, ...]
"""Keys and positions in lists from the root to a value."""

_BARE_KEY: Final = re.compile(r"[-\w]+", re.ASCII)
_BLANK: Final = re.compile(r"(?:[ \t\n]+|#[^\n]*)*")
_DOT: Final = re.compile(r"[ \t]*\.[ \t]*")
_PLAIN_VALUE: Final = re.compile(r"[^,\]}#\n]*")
# The longest delimiter first. Up to two quotes may stand before the closing three.
_TEXTS: Final = (
    ('"""', re.compile(r'"""(?:\\.|[^\\])*?"{3,5}', re.DOTALL)),
    ("'''", re.compile(r"'''.*?'{3,5}", re.DOTALL)),
    ('"', re.compile(r'"(?:\\.|[^"\\])*"')),
    ("'", re.compile(r"'[^']*'")),
)


@dataclass(frozen=True, slots=True)
class TomlLines:
    """The lines of all values of one document, counted from 1."""

    by_path: Mapping[TomlPath, int]

    def line(self, path: TomlPath) -> int:
        """Return the line of a value, or of the innermost existing table around it."""
        while path not in self.by_path:
            path = path[:-1]
        return self.by_path[path]


def toml_lines(text: str) -> TomlLines:
    """Return the lines of a valid document; for an invalid one the result is meaningless."""
    scan = _Scan(text.replace("\r\n", "\n"))
    scan.document()
    return TomlLines(scan.lines)


class _Scan:
    """Scans a valid document once. A table has the line of its own header, if there is one."""

    def __init__(self, text: str) -> None:
        self.lines: dict[TomlPath, int] = {(): 1}
        self._text = text
        self._at = 0
        self._ends = [found.start() for found in re.finditer("\n", text)]
        self._tables: dict[TomlPath, int] = {}
        """The number of tables so far in each array of tables."""

    def document(self) -> None:
        table: TomlPath = ()
        self._skip(_BLANK)
        while self._at < len(self._text):
            if self._take("[["):
                table = self._header_of_array()
            elif self._take("["):
                table = self._header()
            else:
                self._pair(table)
            self._skip(_BLANK)

    def _header(self) -> TomlPath:
        line = self._line()
        keys = self._keys()
        self._take("]")
        path = self._known(keys[:-1], line) + keys[-1:]
        self.lines[path] = line
        return path

    def _header_of_array(self) -> TomlPath:
        line = self._line()
        keys = self._keys()
        self._take("]]")
        array = self._known(keys[:-1], line) + keys[-1:]
        self.lines.setdefault(array, line)
        path = (*array, self._tables.get(array, 0))
        self._tables[array] = self._tables.get(array, 0) + 1
        self.lines[path] = line
        return path

    def _known(self, keys: TomlPath, line: int) -> TomlPath:
        """Return the path of the outer tables of a header; for an array its last table."""
        path: TomlPath = ()
        for key in keys:
            path = (*path, key)
            self.lines.setdefault(path, line)
            if path in self._tables:
                path = (*path, self._tables[path] - 1)
        return path

    def _pair(self, table: TomlPath) -> None:
        line = self._line()
        keys = self._keys()
        for end in range(1, len(keys) + 1):
            self.lines.setdefault(table + keys[:end], line)
        self._take("=")
        self._value(table + keys)

    def _keys(self) -> TomlPath:
        """Consume a dotted key and return its parts."""
        self._skip(_BLANK)
        keys: TomlPath = (self._key(),)
        while self._skip(_DOT):
            keys = (*keys, self._key())
        self._skip(_BLANK)
        return keys

    def _key(self) -> str:
        if bare := self._skip(_BARE_KEY):
            return bare
        quoted = self._quoted()
        return str(tomllib.loads(f"key = {quoted}")["key"])

    def _value(self, path: TomlPath) -> None:
        self._skip(_BLANK)
        self.lines.setdefault(path, self._line())
        if self._take("["):
            self._elements(path)
        elif self._take("{"):
            while not self._closed("}"):
                self._pair(path)
        elif not self._quoted():
            self._skip(_PLAIN_VALUE)

    def _elements(self, path: TomlPath) -> None:
        count = 0
        while not self._closed("]"):
            self._value((*path, count))
            count += 1

    def _closed(self, bracket: str) -> bool:
        """Consume a comma or the closing bracket; return whether it was the bracket."""
        self._skip(_BLANK)
        if self._take(","):
            self._skip(_BLANK)
        return self._take(bracket)

    def _quoted(self) -> str:
        for quotes, whole in _TEXTS:
            if self._text.startswith(quotes, self._at):
                return self._skip(whole)
        return ""

    def _take(self, word: str) -> bool:
        found = self._text.startswith(word, self._at)
        self._at += len(word) * found
        return found

    def _skip(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            return ""
        self._at = found.end()
        return found[0]

    def _line(self) -> int:
        return bisect_right(self._ends, self._at - 1) + 1
