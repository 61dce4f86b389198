from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load_tracker import Tally
from loadmanager.core.policies import Policies


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """The input of a view of the cluster at one time; immutable.

    ``assigned`` are the orders at that time; ``passed_over`` are brokers that take no locks,
    which are treated as draining.
    """

    now_s: float
    tally: Tally
    assigned: Mapping[BundleId, BrokerId]
    policies: Policies
    passed_over: frozenset[BrokerId]

    def view(self) -> ClusterView:
        """Return the view; it may be made in another thread."""
        view = self.tally.view(self.now_s, in_flight=self.assigned, policies=self.policies)
        if not self.passed_over:
            return view
        brokers = view.brokers
        out = np.array([name in self.passed_over for name in brokers.names], dtype=np.bool_)
        return replace(view, brokers=brokers.having(draining=brokers.draining | out))
