"""HTML from values: whatever is not markup already is escaped on its way in."""

from collections.abc import Iterable
from html import escape
from typing import Final

_VOID: Final = frozenset({"br", "hr", "input", "meta"})


class Html(str):
    """Markup. A plain text that goes into a `tag` is escaped, one of these is not."""

    __slots__ = ()


def _attribute(name: str, value: str | bool | float) -> str:
    written = name.rstrip("_").replace("_", "-")
    return f" {written}" if value is True else f' {written}="{escape(str(value))}"'


def tag(kind: str, /, *children: str, **attributes: str | bool | float | None) -> Html:
    """Return the element ``kind`` with ``children`` in it.

    ``class_`` and the like lose their last underscore, others become hyphens. An attribute
    that is None or False is left out, one that is True has no value.
    """
    written = "".join(
        _attribute(key, value)
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    opened = f"<{kind}{written}>"
    return Html(opened) if kind in _VOID else Html(f"{opened}{joined(children)}</{kind}>")


def joined(parts: Iterable[str]) -> Html:
    """Return ``parts`` one after the other."""
    return Html("".join(part if isinstance(part, Html) else escape(part) for part in parts))
