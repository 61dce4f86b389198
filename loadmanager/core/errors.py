"""Errors the core raises, one class per thing a caller can do about it."""


class LoadManagerError(Exception):
    """Base of every error this package raises on purpose."""


class InvalidName(LoadManagerError, ValueError):
    """A broker, namespace, bundle or topic name that cannot be one.

    Args:
        kind: what the text was meant to be: ``"topic"``, ``"bundle"`` and so on.
        text: the text as it came in.
        expected: what would have been accepted.
    """

    def __init__(self, kind: str, text: object, expected: str) -> None:
        super().__init__(f"{kind} {_shortened(text)} is not valid; expected {expected}")
        self.kind = kind
        self.expected = expected


class MalformedContent(LoadManagerError, ValueError):
    """Stored or received JSON that does not have the promised form.

    Args:
        where: the znode, URL or file the content came from.
        what: the field (``"cpu.usage"``) and the value found there.
        expected: what would have been accepted.
    """

    def __init__(self, where: str, what: str, expected: str) -> None:
        super().__init__(f"{where}: {what}; expected {expected}")
        self.where = where
        self.expected = expected


def _shortened(text: object, limit: int = 120) -> str:
    shown = repr(text)
    return shown if len(shown) <= limit else f"{shown[:limit]}... ({len(shown)} characters)"
