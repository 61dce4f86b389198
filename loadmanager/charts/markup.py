"""HTML from values: every text that is not markup is escaped."""

from collections.abc import Iterable
from html import escape
from typing import Final

_VOID: Final = frozenset({"br", "hr", "input", "meta"})


class Html(str):
    """Markup: `tag` does not escape it, unlike a plain text."""

    __slots__ = ()


def _attribute(name: str, value: str | bool | float) -> str:
    written = name.rstrip("_").replace("_", "-")
    return f" {written}" if value is True else f' {written}="{escape(str(value))}"'


def tag(kind: str, /, *children: str, **attributes: str | bool | float | None) -> Html:
    """Return the element ``kind`` with ``children`` in it.

    In names of attributes a trailing underscore is removed, and others become hyphens. An
    attribute that is None or False is omitted, one that is True has no value.
    """
    written = "".join(
        _attribute(key, value)
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    opened = f"<{kind}{written}>"
    return Html(opened) if kind in _VOID else Html(f"{opened}{joined(children)}</{kind}>")


def joined(parts: Iterable[str]) -> Html:
    return Html("".join(part if isinstance(part, Html) else escape(part) for part in parts))
