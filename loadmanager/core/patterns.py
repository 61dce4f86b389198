r"""Regular expressions in Java's syntax, as Pulsar takes them, matched in linear time by RE2.

Texts are names of namespaces and hosts, in ASCII without white space: where RE2 and Java differ for
other characters (``\s``, ``.``, ``\b``) nothing is translated.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import re2

from loadmanager.core.errors import LoadManagerError

MOST_CHARACTERS: Final = 1_000
_MOST_BYTES: Final = 256 * 1024
_TOKEN: Final = re.compile(
    r"\\Q((?:[^\\]|\\(?!E))*+)(?:\\E)?|\\u([0-9A-Fa-f]{4})|\\([pP])\{([A-Z]\w{3,5})\}"
    r"|\\.|\[\^?\]?|&&|.",
    re.DOTALL,
)
_OTHERS: Final = {r"\Z": r"\z", r"\e": r"\x1b"}
_BEGIN: Final = re.compile(r"([-\w/]*+)([*?{]?)", re.ASCII)


class PatternRefused(LoadManagerError):
    """A pattern is not valid, or needs what RE2 does not support; the message says what."""


@lru_cache(maxsize=1_024)
def compiled(pattern: str) -> Any:
    """Return the expression of RE2. Raises `PatternRefused`."""
    options = re2.Options()
    options.log_errors, options.never_capture, options.max_mem = False, True, _MOST_BYTES
    if len(pattern) > MOST_CHARACTERS:
        raise PatternRefused(f"a pattern has over {MOST_CHARACTERS:,} characters")
    try:
        return re2.compile("".join(_translated(pattern)), options)
    except re2.error as error:
        why = error.args[0].decode(errors="replace")
    except (UnicodeEncodeError, PatternRefused) as error:
        why = str(error)
    raise PatternRefused(f"RE2 does not support {pattern!a} ({why})")


@lru_cache(maxsize=32_768)
def why_refused(patterns: tuple[str, ...]) -> str:
    """Return why one of these patterns cannot be used, "" if all can."""
    try:
        for pattern in patterns:
            compiled(pattern)
    except PatternRefused as refused:
        return str(refused)
    return ""


@lru_cache(maxsize=131_072)
def matches_any(patterns: tuple[str, ...], text: str) -> bool:
    """Return whether one of these matches the whole text; none does if one is refused."""
    return not why_refused(patterns) and any(compiled(one).fullmatch(text) for one in patterns)


def may_match(pattern: str, text: str) -> bool:
    """Return whether a pattern matches; a refused one, whether it may by how it begins."""
    begin = _BEGIN.match(pattern)
    if not why_refused((pattern,)) or begin is None:
        return matches_any((pattern,), text)
    return "|" in pattern or text.startswith(begin[1][: -1 if begin[2] else None])


def _translated(pattern: str) -> Iterator[str]:
    in_class = False
    for token in _TOKEN.finditer(pattern):
        one, (quoted, code, sign, name) = token[0], token.groups()
        if in_class and (one[0] == "[" or one == "&&"):
            raise PatternRefused("unions and intersections of character classes")
        if one in {r"\v", r"\C", r"\0"}:  # They mean something else.
            raise PatternRefused(f"the escape {one}")
        if quoted is not None:
            yield re2.escape(quoted)
        elif code:
            yield f"\\x{{{code}}}"
        elif sign:
            posix = f"[:{'^' * (sign == 'P')}{name.lower()}:]"
            yield posix if in_class else f"[{posix}]"
        else:
            in_class = one[0] == "[" or (in_class and one != "]")
            yield _OTHERS.get(one, one)
