class LoadManagerError(Exception):
    """Base of all errors that this package raises deliberately."""


class InvalidName(LoadManagerError, ValueError):
    """An invalid name of a broker, namespace, bundle or topic; ``expected`` would be accepted."""

    def __init__(self, kind: str, text: object, expected: str) -> None:
        super().__init__(f"{kind} {_shortened(text)} is not valid; expected {expected}")
        self.kind = kind
        self.expected = expected


class MalformedContent(LoadManagerError, ValueError):
    """Stored or received JSON that does not have the promised form.

    ``where`` is the znode, URL or file, ``what`` the field (``"cpu.usage"``) and the value there.
    """

    def __init__(self, where: str, what: str, expected: str) -> None:
        super().__init__(f"{where}: {what}; expected {expected}")
        self.where = where
        self.expected = expected


def _shortened(text: object, limit: int = 120) -> str:
    shown = repr(text)
    return shown if len(shown) <= limit else f"{shown[:limit]}... ({len(shown)} characters)"
