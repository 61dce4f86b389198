"""How much of a change of traffic lasts: learned from how much of earlier ones did.

A bundle's traffic now is its long-term mean and a deviation. What it will be in ten minutes
is predicted as the mean and ``lasting`` times the deviation. Bursts of a minute are gone by
then and ``lasting`` goes to 0: bundles are weighed by their means and nothing is moved for a
burst. Changes that stay take it to 1: bundles are weighed by what they do now.

A deviation that was there at an earlier look has lasted for that long; what has begun since
may pass in the next minute. How much lasts is learned of each part by itself: of what is new
nothing counts until it was seen to last here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from loadmanager.core.columns import Mask
from loadmanager.core.ids import BundleId
from loadmanager.core.scores import FloatArray

SUPPOSED: Final = 0.8
SUPPOSED_NEW: Final = 0.0
"""So much is supposed to last of what was there at an earlier look, and of what is new."""

HORIZON_S: Final = 600.0
LOOK_S: Final = 100.0
"""The least time between two looks at what the bundles do."""

_KEPT_PER_ROUND: Final = 0.98
_PRIOR: Final = 0.05
"""What is supposed counts as much as five looks at deviations of a tenth of every bundle."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Snapshot:
    """The shares of the cluster's cost that the bundles had ``at_s``: short- and long-term.

    ``confirmed`` is how much of the deviation of each was there at the look before.
    """

    at_s: float
    short: FloatArray
    long: FloatArray
    confirmed: FloatArray


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Persistence:
    """What was learned so far: ``lasting`` of a confirmed deviation, ``lasting_new`` of another.

    ``looked_at`` are the products of the two parts of deviations, ``lasted`` those with what
    was left of them: the sums of a regression.
    ``rows`` are the names of the bundles' rows at the ``snapshots``: another object has
    other rows. ``confirmed`` (K,) is how much of the deviation of each bundle was there at an
    earlier look.
    """

    lasted: FloatArray = field(default_factory=lambda: np.zeros(2))
    looked_at: FloatArray = field(default_factory=lambda: np.zeros((2, 2)))
    lasting: float = SUPPOSED
    lasting_new: float = SUPPOSED_NEW
    rows: Sequence[BundleId] | None = None
    snapshots: tuple[Snapshot, ...] = ()
    confirmed: FloatArray = field(default_factory=lambda: np.zeros(0))

    def lasting_of(self, count: int, at_once: Mask) -> FloatArray:
        """Return (K,): how much of the deviation of each of ``count`` bundles is to count.

        Of those ``at_once`` it counts from its beginning, as of bundles not seen before.
        """
        confirmed = np.append(self.confirmed, np.ones(max(count - len(self.confirmed), 0)))[:count]
        of_old = np.where(at_once, 1.0, confirmed)
        return np.asarray(self.lasting_new + (self.lasting - self.lasting_new) * of_old)

    def after(
        self, now_s: float, rows: Sequence[BundleId], short: FloatArray, long: FloatArray
    ) -> "Persistence":
        """Return what is known once the shares are ``short``, in the long term ``long``."""
        snapshots = self.snapshots if rows is self.rows else ()
        lasted, looked_at = _KEPT_PER_ROUND * self.lasted, _KEPT_PER_ROUND * self.looked_at
        confirmed = _confirmed(now_s, snapshots, short - long)
        due = [one for one in snapshots if now_s - one.at_s >= HORIZON_S]
        if due:
            then = due[-1]
            count = min(len(then.short), len(short))
            deviation = then.short[:count] - then.long[:count]
            old = then.confirmed[:count] * deviation
            parts = np.stack([old, deviation - old])
            lasted = lasted + parts @ (short[:count] - then.long[:count])
            looked_at = looked_at + parts @ parts.T
            snapshots = tuple(one for one in snapshots if one.at_s >= then.at_s)
        if not snapshots or now_s - snapshots[-1].at_s >= LOOK_S:
            snapshots = (
                *snapshots,
                Snapshot(at_s=now_s, short=short, long=long, confirmed=confirmed),
            )
        prior = _PRIOR * float(long @ long) or 1.0  # Any will do where there is no traffic.
        supposed = prior * np.array([SUPPOSED, SUPPOSED_NEW])
        found = np.clip(np.linalg.solve(looked_at + prior * np.eye(2), lasted + supposed), 0.0, 1.0)
        return replace(
            self,
            lasted=lasted,
            looked_at=looked_at,
            lasting=float(found[0]),
            lasting_new=float(found[1]),
            rows=rows,
            snapshots=snapshots,
            confirmed=confirmed,
        )


def _confirmed(now_s: float, snapshots: Sequence[Snapshot], deviation: FloatArray) -> FloatArray:
    """Return (K,): how much of each deviation was there at the look before; 1 without one."""
    found = np.ones(len(deviation))
    looks = [one for one in snapshots if now_s - one.at_s >= LOOK_S]
    if looks:
        then = looks[-1].short - looks[-1].long
        count = min(len(then), len(deviation))
        now = deviation[:count]
        found[:count] = np.clip(then[:count] / np.where(now == 0, np.inf, now), 0.0, 1.0)
    return found
