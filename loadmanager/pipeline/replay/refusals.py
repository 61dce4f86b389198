"""Why a round cannot be replayed."""

from collections.abc import Mapping
from typing import Final

CLOCK_SET_BACK: Final = "clock_set_back"
NO_BASE_YET: Final = "no_base_yet"
REPORT_MISSING: Final = "report_missing"
BUNDLES_MISSING: Final = "bundles_missing"
UNREADABLE: Final = "unreadable"

REFUSALS: Final[Mapping[str, str]] = {
    CLOCK_SET_BACK: "the leader's clock was set back",
    NO_BASE_YET: "no base round before it in its stretch could be read",
    REPORT_MISSING: "a load report that the leader had is not in the history",
    BUNDLES_MISSING: "lines of the bundles of a base round are missing",
    UNREADABLE: "its memory, constraints or settings cannot be read",
}
"""Why a round cannot be replayed."""
