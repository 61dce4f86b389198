"""How much of a change of traffic lasts: learned from how much of earlier ones did.

A bundle's traffic now is its long-term mean and a deviation. What it will be in ten minutes
is predicted as the mean and ``lasting`` times the deviation. Bursts of a minute are gone by
then and ``lasting`` goes to 0: bundles are weighed by their means and nothing is moved for a
burst. Changes that stay take it to 1: bundles are weighed by what they do now.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from loadmanager.core.ids import BundleId
from loadmanager.core.scores import FloatArray

SUPPOSED: Final = 0.8
HORIZON_S: Final = 600.0
_SNAPSHOTS: Final = 6
_KEPT_PER_ROUND: Final = 0.98
_PRIOR: Final = 0.05
"""What is supposed counts as much as five looks at deviations of a tenth of every bundle."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Snapshot:
    """The shares of the cluster's cost that the bundles had ``at_s``: short- and long-term."""

    at_s: float
    short: FloatArray
    long: FloatArray


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Persistence:
    """What was learned so far: ``lasted`` of the square of all deviations, ``looked_at``.

    ``rows`` are the names of the bundles' rows at the ``snapshots``: another object has
    other rows.
    """

    lasted: float = 0.0
    looked_at: float = 0.0
    lasting: float = SUPPOSED
    rows: Sequence[BundleId] | None = None
    snapshots: tuple[Snapshot, ...] = ()

    def after(
        self, now_s: float, rows: Sequence[BundleId], short: FloatArray, long: FloatArray
    ) -> "Persistence":
        """Return what is known once the shares are ``short``, in the long term ``long``."""
        snapshots = self.snapshots if rows is self.rows else ()
        lasted, looked_at = _KEPT_PER_ROUND * self.lasted, _KEPT_PER_ROUND * self.looked_at
        due = [one for one in snapshots if now_s - one.at_s >= HORIZON_S]
        if due:
            then = due[-1]
            count = min(len(then.short), len(short))
            deviation = then.short[:count] - then.long[:count]
            lasted += float(deviation @ (short[:count] - then.long[:count]))
            looked_at += float(deviation @ deviation)
            snapshots = tuple(one for one in snapshots if one.at_s >= then.at_s)
        if not snapshots or now_s - snapshots[-1].at_s >= HORIZON_S / _SNAPSHOTS:
            snapshots = (*snapshots, Snapshot(at_s=now_s, short=short, long=long))
        prior = _PRIOR * float(long @ long)
        whole = looked_at + prior
        lasting = (lasted + prior * SUPPOSED) / whole if whole > 0 else SUPPOSED
        return replace(
            self,
            lasted=lasted,
            looked_at=looked_at,
            lasting=float(np.clip(lasting, 0.0, 1.0)),
            rows=rows,
            snapshots=snapshots,
        )
