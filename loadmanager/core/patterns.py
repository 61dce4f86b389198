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
_TOKEN: Final = re.compile(
    r"\\Q((?:[^\\]|\\(?!E))*+)(?:\\E)?|\\([pP])\{([A-Z]\w{3,5})\}|\\.|\[\^?\]?|&&|.", re.DOTALL
)
_BEGIN: Final = re.compile(r"([-\w/]*+)([*?{]?)", re.ASCII)


@lru_cache(maxsize=1_024)
def _compiled(pattern: str) -> tuple[Any, str]:
    """Return the expression of RE2, or why there is none."""
    options = re2.Options()
    options.log_errors, options.never_capture, options.max_mem = False, True, 256 * 1024
    try:
        return re2.compile("".join(_translated(pattern)), options), ""
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


@lru_cache(maxsize=131_072)
def matches_any(patterns: tuple[str, ...], text: str) -> bool:
    """Return whether one of these matches the whole text; none does if one is refused."""
    return not why_refused(patterns) and any(_compiled(one)[0].fullmatch(text) for one in patterns)


def may_match(pattern: str, text: str) -> bool:
    """Return whether a pattern matches; a refused one, whether it may by how it begins."""
    begin = _BEGIN.match(pattern)
    if not why_refused((pattern,)) or begin is None:
        return matches_any((pattern,), text)
    return "|" in pattern or text.startswith(begin[1][: -1 if begin[2] else None])


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
