"""Predicts how much of a change of traffic lasts, from earlier changes.

The current traffic of a bundle is its long-term mean plus a deviation. Its traffic in ten
minutes is predicted as the mean plus ``lasting`` times the deviation. If bursts last only a
minute, ``lasting`` approaches 0: bundles are weighed by their means, and nothing is moved
because of a burst. If changes persist, it approaches 1: bundles are weighed by their current
traffic.

A deviation that was already present at an earlier look has lasted since then; a newer one may
end in the next minute. The lasting fraction is learned separately for the two parts: a new
deviation is ignored until such deviations have been observed to last.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from loadmanager.core.columns import Indices, Mask
from loadmanager.core.ids import BundleId
from loadmanager.core.scores import FloatArray

SUPPOSED: Final = 0.8
SUPPOSED_NEW: Final = 0.0
"""Initial lasting fractions of confirmed deviations, and of new ones."""

HORIZON_S: Final = 600.0
LOOK_S: Final = 100.0
"""The least time between two looks at the traffic of bundles."""

_KEPT_PER_MIN: Final = 0.98
_PRIOR: Final = 0.05
"""The initial fractions have the weight of five looks at deviations of a tenth of every bundle."""

_TURNOVER_S: Final = 20.0
_TURNOVER_KEPT_PER_MIN: Final = 0.94
SUPPOSED_TURNOVER: Final = 0.0076
_STEADY: Final = 0.019
"""Turnover at which a move has its normal price."""

_MOST_RISK: Final = 2.0
"""Largest price, as a factor of the normal one."""

_LEAST_PRICE: Final = 0.35
"""No price is reduced below this, at which the noise of an even cluster begins to move bundles."""


@dataclass(frozen=True, eq=False, slots=True)
class Snapshot:
    """The bundles' shares of the cluster's cost at ``at_s``, short- and long-term.

    ``confirmed`` is the fraction of each deviation that was present at the previous look.
    """

    at_s: float
    short: FloatArray
    long: FloatArray
    confirmed: FloatArray
    forecast: FloatArray


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Persistence:
    """The lasting fractions: ``lasting`` of a confirmed deviation, ``lasting_new`` of a new one.

    ``looked_at`` and ``lasted`` are the sums of a regression: the products of the two parts of
    deviations, and their products with the remaining deviation. ``rows`` are the names of the
    bundle rows of the ``snapshots``: if the object differs, the rows do as well. ``confirmed``
    (K,) is the fraction of each bundle's deviation that was present at an earlier look.
    ``turnover`` is the fraction of the cluster's cost that other brokers have ten minutes later if
    no bundle moves, with the noise of the averages, and as much of brokers' backgrounds;
    ``turnover_looks`` is the number of looks in it, the last at ``turned_s``.
    """

    lasted: FloatArray = field(default_factory=lambda: np.zeros(2))
    looked_at: FloatArray = field(default_factory=lambda: np.zeros((2, 2)))
    lasting: float = SUPPOSED
    lasting_new: float = SUPPOSED_NEW
    rows: Sequence[BundleId] | None = None
    snapshots: tuple[Snapshot, ...] = ()
    confirmed: FloatArray = field(default_factory=lambda: np.zeros(0))
    began_s: float = float("inf")
    at_s: float = float("inf")
    turnover: float = SUPPOSED_TURNOVER
    turnover_looks: float = 1.0
    turned_s: float = float("-inf")

    def price(self, normal: float) -> float:
        """Return the price of a move: where traffic changes anyway, a move brings little."""
        least = min(normal, _LEAST_PRICE)
        return min(max((self.turnover / _STEADY) ** 2 * normal, least), _MOST_RISK * normal)

    def lasting_of(self, count: int, at_once: Mask) -> FloatArray:
        """Return (K,): the fraction to use of the deviation of each of ``count`` bundles.

        For bundles ``at_once``, and for new bundles, a deviation counts as confirmed from its
        beginning.
        """
        confirmed = np.append(self.confirmed, np.ones(max(count - len(self.confirmed), 0)))[:count]
        of_old = np.where(at_once, 1.0, confirmed)
        return np.asarray(self.lasting_new + (self.lasting - self.lasting_new) * of_old)

    def after(
        self,
        now_s: float,
        rows: Sequence[BundleId],
        short: FloatArray,
        long: FloatArray,
        *,
        owner: Indices,
        others_changed: float = 0.0,
    ) -> "Persistence":
        snapshots = self.snapshots if rows is self.rows else ()
        kept = _KEPT_PER_MIN ** (max(now_s - self.at_s, 0.0) / 60.0)
        lasted, looked_at = kept * self.lasted, kept * self.looked_at
        confirmed = _confirmed(now_s, snapshots, short - long)
        lasts = self.lasting_new + (self.lasting - self.lasting_new) * confirmed
        forecast = long + lasts * (short - long)
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
            now = Snapshot(now_s, short, long, confirmed, forecast)
            snapshots = (*snapshots, now)
        turned = self._turned(
            now_s, snapshots, short, forecast, owner=owner, others_changed=others_changed
        )
        prior = _PRIOR * float(long @ long) or 1.0  # Any value will do without traffic.
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
            at_s=now_s,
            **turned,
        )

    def _turned(
        self,
        now_s: float,
        snapshots: Sequence[Snapshot],
        short: FloatArray,
        forecast: FloatArray,
        *,
        owner: Indices,
        others_changed: float,
    ) -> dict[str, float]:
        """Return the fields of the turnover, after another look at most every `_TURNOVER_S`."""
        began_s = min(self.began_s, now_s)
        # The first averages are of traffic that begins, and of few samples.
        then = next((one for one in snapshots if one.at_s - began_s >= LOOK_S), None)
        if then is None or now_s - max(then.at_s, self.turned_s) < _TURNOVER_S:
            return {"began_s": began_s}
        count = min(len(then.short), len(short))
        # Changes of the bundles of one broker that make up for each other leave its load as it was.
        # Half of what comes and goes counts as well: it may come while a move is under way.
        grown = (forecast[:count] - then.forecast[:count], short[:count] - then.short[:count])
        rows = owner[:count] + 1  # 0 is no broker.
        moved = sum(np.abs(np.bincount(rows, weights=one)[1:]).sum() for one in grown)
        changed = (float(moved) + others_changed) / 4.0
        kept = _TURNOVER_KEPT_PER_MIN ** (min(now_s - self.turned_s, HORIZON_S) / 60.0)
        # The first looks span less time, so the later ones count for more.
        step = max(2.0 / (self.turnover_looks + 2.0), 1.0 - kept)
        return {
            "began_s": began_s,
            "turnover": self.turnover + step * (changed - self.turnover),
            "turnover_looks": self.turnover_looks + 1.0,
            "turned_s": now_s,
        }


def _confirmed(now_s: float, snapshots: Sequence[Snapshot], deviation: FloatArray) -> FloatArray:
    """Return (K,): the fraction of each deviation present at the previous look; 1 without one."""
    found = np.ones(len(deviation))
    looks = [one for one in snapshots if now_s - one.at_s >= LOOK_S]
    if looks:
        then = looks[-1].short - looks[-1].long
        count = min(len(then), len(deviation))
        now = deviation[:count]
        found[:count] = np.clip(then[:count] / np.where(now == 0, np.inf, now), 0.0, 1.0)
    return found
