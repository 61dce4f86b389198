"""Parses JSON objects, and refuses repeated names."""

import json
from typing import Any, Final

from loadmanager.core.errors import MalformedContent

SHOWN: Final = 80
"""The maximum number of characters shown of an unexpected value."""


def parsed(where: str, data: bytes) -> dict[str, Any]:
    """Return the JSON object. It may contain NaN, which is refused where a number is expected."""

    def without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise MalformedContent(where, f"{ascii(twice)[:SHOWN]} twice in an object", "it once")
        return found

    try:
        found = json.loads(data.decode(), object_pairs_hook=without_repetition)
    except (UnicodeDecodeError, json.JSONDecodeError) as problem:
        raise MalformedContent(where, str(problem), "a JSON object in UTF-8") from None
    except MalformedContent:
        raise
    except (ValueError, RecursionError):
        what = f"{len(data)} bytes"
        raise MalformedContent(where, what, "JSON with numbers and depth of a sane size") from None
    if not isinstance(found, dict):
        raise MalformedContent(where, ascii(found)[:SHOWN], "a JSON object")
    return found
