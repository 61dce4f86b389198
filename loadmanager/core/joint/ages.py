"""How long brokers have been above the level: the longer, the cheaper are moves off them.

An imbalance is expected to last for as long again as it has already lasted. A move saves load
for that time, and its price is paid once, so the price falls with the age of the imbalance.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from loadmanager.core.columns import Indices
from loadmanager.core.ids import BrokerId
from loadmanager.core.scores import FloatArray

HALF_PRICE_S: Final = 300.0
"""Age of an imbalance at which moves cost half; at three times that age, a quarter."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Ages:
    """How far the brokers ``names`` were above the level at ``at_s``, and for how long."""

    at_s: float = 0.0
    names: Sequence[BrokerId] = ()
    over: FloatArray = field(default_factory=lambda: np.zeros(0))
    age_s: FloatArray = field(default_factory=lambda: np.zeros(0))

    def after(
        self, now_s: float, names: Sequence[BrokerId], over: FloatArray, mean_s: float = 0.0
    ) -> "Ages":
        """Return the ages for brokers that are now ``over`` the level; 0 is even, and has no age.

        An increase of an imbalance begins now, which reduces the age of the whole in proportion.
        Of rounds within ``mean_s`` the running mean of ``over`` counts.
        """
        known = {name: row for row, name in enumerate(self.names)}
        rows = np.array([known.get(name, -1) for name in names], dtype=np.intp)
        # The appended element is for new brokers.
        then, since_s = np.append(self.over, 0.0)[rows], np.append(self.age_s, 0.0)[rows]
        passed_s = max(now_s - self.at_s, 0.0)
        new = min(passed_s / mean_s, 1.0) if mean_s else 1.0
        over = np.where(rows < 0, over, new * over + (1.0 - new) * then)
        old = np.minimum(then / np.where(over > 0, over, np.inf), 1.0)
        return Ages(at_s=now_s, names=names, over=over, age_s=old * (since_s + now_s - self.at_s))

    def prices(self, price: float, effort: FloatArray, owner: Indices) -> FloatArray:
        """Return (K,): the price of moving each bundle, given the age of its owner's imbalance."""
        discount = HALF_PRICE_S / (HALF_PRICE_S + self.age_s)
        return np.asarray(price * effort * discount[owner])
