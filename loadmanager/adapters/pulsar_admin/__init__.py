from loadmanager.adapters.pulsar_admin.client import (
    Access,
    AnswerRefused,
    NotPulsar,
    PulsarAdmin,
    PulsarAdminError,
    RequestFailed,
    RightMissing,
    Unanswered,
)

__all__ = [
    "Access",
    "AnswerRefused",
    "NotPulsar",
    "PulsarAdmin",
    "PulsarAdminError",
    "RequestFailed",
    "RightMissing",
    "Unanswered",
]
