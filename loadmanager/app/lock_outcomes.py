"""What becomes of the locks that are to be taken and dropped."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from loadmanager.core.ids import BundleId
from loadmanager.ports import TooLarge


class LockResult(StrEnum):
    """What became of one lock that was to be taken or dropped."""

    TAKEN = "taken"
    DROPPED = "dropped"
    HELD_BY_ANOTHER = "held_by_another"
    NOT_A_BUNDLE = "not_a_bundle"
    """Its namespace does not have such a bundle (any more)."""
    ORDERS_IN_DOUBT = "orders_in_doubt"
    NOT_APPLIED = "not_applied"
    """The connection was lost, and the commit was not applied."""
    TAKE_TOO_LARGE = "take_too_large"
    DROP_TOO_LARGE = "drop_too_large"


@dataclass(frozen=True, slots=True)
class LockOutcome:
    """What became of one lock; with its fencing token if it was taken."""

    bundle: BundleId
    result: LockResult
    token: int = 0
    error: TooLarge | None = None


def outcomes_of(
    bundles: Iterable[BundleId], result: LockResult, token: int = 0, error: TooLarge | None = None
) -> list[LockOutcome]:
    """Return the same outcome for each of ``bundles``."""
    return [LockOutcome(bundle, result, token, error) for bundle in bundles]
