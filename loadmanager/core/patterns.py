r"""Regular expressions in Java's syntax, as Pulsar takes them, matched in linear time by RE2.

Texts are names of namespaces and hosts, in ASCII without white space: where RE2 and Java differ for
other characters (``\s``, ``.``, ``\b``) nothing is translated.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import re2

MOST_CHARACTERS: Final = 1_000
_MOST_KNOWN: Final = 131_072
_TOKEN: Final = re.compile(
    r"\\Q((?:[^\\]|\\(?!E))*+)(?:\\E)?|\\([pP])\{([A-Z]\w{3,5})\}|\\.|\[\^?\]?|&&|.", re.DOTALL
)
_BEGIN: Final = re.compile(r"([-\w/]*+)([*?{]?)", re.ASCII)


def _options(most_bytes: int) -> Any:
    options = re2.Options()
    options.log_errors, options.never_capture, options.max_mem = False, True, most_bytes
    return options


@lru_cache(maxsize=1_024)
def _compiled(pattern: str) -> tuple[Any, str]:
    """Return the expression of RE2, or why there is none."""
    try:
        return re2.compile("".join(_translated(pattern)), _options(256 * 1024)), ""
    except re2.error as error:
        why = error.args[0].decode(errors="replace")
    except ValueError as error:
        why = str(error)
    return None, f"RE2 does not support {pattern[:80]!a} ({why})"


@lru_cache(maxsize=32_768)
def why_refused(patterns: tuple[str, ...]) -> str:
    """Return why one of these patterns cannot be used, "" if all can."""
    return next((why for _, why in map(_compiled, patterns) if why), "")


def checked(pattern: str) -> str:
    """Return a pattern. Raises `ValueError`: it is refused."""
    if why := why_refused((pattern,)):
        raise ValueError(why)
    return pattern


@lru_cache(maxsize=64)
def _engine(patterns: tuple[str, ...]) -> Any:
    """Return what matches all at once, and one that matches any text; None if it is too large."""
    found = re2.Set.FullMatchSet(_options(32 * 1024 * 1024))
    for pattern in (*patterns, "(?s:.*)"):
        found.Add("".join(_translated(pattern)))
    try:
        found.Compile()
    except re2.error:
        return None
    return found


class Patterns:
    """Patterns, none of them refused, that are matched at once; what was found is kept."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._patterns = patterns
        self._known: dict[str, str | None] = {}

    def first(self, text: str) -> str | None:
        """Return the first one that matches the whole text; None if none does."""
        if text not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[text] = _first(self._patterns, text)
        return self._known[text]


together = lru_cache(maxsize=512)(Patterns)


def _first(patterns: tuple[str, ...], text: str) -> str | None:
    if len(patterns) <= 1:
        return next((one for one in patterns if _compiled(one)[0].fullmatch(text)), None)
    engine = _engine(patterns)
    found: tuple[int, ...] = tuple((engine and engine.Match(text)) or ())
    if len(patterns) in found:  # Otherwise the engine ran out of memory.
        return (*patterns, None)[min(found)]
    half = len(patterns) // 2
    first = _first(patterns[:half], text)
    return _first(patterns[half:], text) if first is None else first


def matches_any(patterns: tuple[str, ...], text: str) -> bool:
    """Return whether one of these matches the whole text; none does if one is refused."""
    return not why_refused(patterns) and together(patterns).first(text) is not None


def loosened(pattern: str) -> str:
    """Return a pattern, or for a refused one what matches all texts that begin as it does."""
    if not why_refused((pattern,)):
        return pattern
    ((literal, repeated),) = _BEGIN.findall(pattern)[:1]
    literal = "" if "|" in pattern else literal[: -1 if repeated else None]
    return f"(?s:{re2.escape(literal)}.*)"


def _translated(pattern: str) -> Iterator[str]:
    in_class = False
    if len(pattern) > MOST_CHARACTERS:
        raise ValueError(f"over {MOST_CHARACTERS:,} characters")
    for token in _TOKEN.finditer(pattern):
        one, (quoted, sign, name) = token[0], token.groups()
        if in_class and (one[0] == "[" or one == "&&"):
            raise ValueError("unions and intersections of character classes")
        if one in {r"\v", r"\C", r"\0"}:  # They mean something else.
            raise ValueError(f"the escape {one}")
        if quoted is not None:
            yield re2.escape(quoted)
        elif sign:
            posix = f"[:{'^' * (sign == 'P')}{name.lower()}:]"
            yield posix if in_class else f"[{posix}]"
        else:
            in_class = one[0] == "[" or (in_class and one != "]")
            yield r"\z" if one == r"\Z" else one
