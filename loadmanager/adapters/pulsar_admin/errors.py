"""What can go wrong with a question to a broker: one class for each thing to do about it."""

from loadmanager.core.errors import LoadManagerError


class PulsarAdminError(LoadManagerError):
    """A broker's admin REST did not give what was asked; the message says where and why."""


class Unanswered(PulsarAdminError):
    """No answer came in time, or the connection failed: the broker may be down."""


class RightMissing(PulsarAdminError):
    """401 or 403: the token or certificate is missing, expired, or has not the right."""


class AnswerRefused(PulsarAdminError):
    """Another status than 200, or more bytes than an answer may have."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class NotPulsar(PulsarAdminError):
    """The answer has not the form that a Pulsar broker's has."""
