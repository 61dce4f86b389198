"""What a replay reads of history, in the order in which the leader learned it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from loadmanager.core.history.schema import SHORT_AND_LONG, TRAFFIC
from loadmanager.core.scores import FloatArray

LISTED: Final = (
    *(one.name for one in TRAFFIC),
    "topics",
    "producers",
    "consumers",
    "cache_bytes",
)
"""The columns of a ``report``'s numbers."""

AVERAGED: Final = (
    *(one.name for one in SHORT_AND_LONG),
    "short_samples",
    "long_samples",
    "topics",
)
"""The columns of the numbers of ``bundles``."""

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_NO_NUMBERS: Final[FloatArray] = np.zeros((0, 0))


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """One line of history, as far as a replay needs it.

    ``kind`` is report, tick, bundles, round, move, task or cut. ``body`` are the line's fields.
    Those of the bundles are apart: ``names``, and ``numbers`` of (bundles, columns) by
    `LISTED` or `AVERAGED`. A report comes before the first event that names it, and the
    ``bundles`` of a base round are one event, where the first of their lines was.
    """

    kind: str
    body: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    names: tuple[str, ...] = ()
    numbers: FloatArray = field(default_factory=lambda: _NO_NUMBERS)
