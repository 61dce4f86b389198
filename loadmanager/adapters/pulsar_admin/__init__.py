from loadmanager.adapters.pulsar_admin.client import (
    Access,
    AnswerRefused,
    NotPulsar,
    PulsarAdmin,
    PulsarAdminError,
    RequestFailed,
    RightMissing,
    Unanswered,
    answer_of,
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
    "answer_of",
]
