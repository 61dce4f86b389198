"""The input of a replay from history, in the order in which the leader received it."""

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
"""The columns of the numbers of a ``report``."""

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
    """The part of a line of history that a replay needs.

    ``kind`` is report, tick, bundles, round, move, task or cut. ``body`` are the fields of the
    line, except those of bundles: ``names``, and ``numbers`` (bundles, columns) in the columns
    `LISTED` or `AVERAGED`. A report precedes the first event that names it, and the ``bundles``
    of a base round are one event in the place of the first of their lines.
    """

    kind: str
    body: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    names: tuple[str, ...] = ()
    numbers: FloatArray = field(default_factory=lambda: _NO_NUMBERS)
