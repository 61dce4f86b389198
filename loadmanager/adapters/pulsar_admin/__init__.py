"""Pulsar's admin REST and metrics, asked as an operator would ask them."""

from loadmanager.adapters.pulsar_admin.client import (
    Access,
    AnswerRefused,
    NotPulsar,
    PulsarAdmin,
    PulsarAdminError,
    RightMissing,
    Unanswered,
)

__all__ = [
    "Access",
    "AnswerRefused",
    "NotPulsar",
    "PulsarAdmin",
    "PulsarAdminError",
    "RightMissing",
    "Unanswered",
]
