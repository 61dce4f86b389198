"""What a leader wants to change in its orders at once, and less of it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Self

from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.orders import SplitOrder


@dataclass(frozen=True, slots=True)
class OrderChanges:
    """Bundles for brokers, orders to split (None takes one back), and bundles that are no more."""

    assigned: Mapping[BundleId, BrokerId] = field(default_factory=dict)
    splits: Mapping[BundleId, SplitOrder | None] = field(default_factory=dict)
    gone: Collection[BundleId] = ()

    def __bool__(self) -> bool:
        """Return whether they change anything."""
        return bool(self.assigned or self.splits or self.gone)

    def apply(
        self, assigned: Mapping[BundleId, BrokerId], splits: Mapping[BundleId, SplitOrder]
    ) -> tuple[dict[BundleId, BrokerId], dict[BundleId, SplitOrder]]:
        """Return who is to own what, and what is to be split, after these changes."""
        whole = {**assigned, **self.assigned}
        after = {bundle: broker for bundle, broker in whole.items() if bundle not in self.gone}
        cuts = {
            bundle: order
            for bundle, order in {**splits, **self.splits}.items()
            if order is not None and bundle in after
        }
        return after, cuts

    def less(self, full: Collection[BrokerId], assigned: Mapping[BundleId, BrokerId]) -> Self:
        """Return half of the bundles for brokers whose orders do not fit, all for the others.

        ``assigned`` is who was to own what before: what is split there stays whole, too.
        """
        fitting = {b: broker for b, broker in self.assigned.items() if broker not in full}
        for broker in sorted(full):
            bundles = sorted(bundle for bundle, to in self.assigned.items() if to == broker)
            fitting |= dict.fromkeys(bundles[: len(bundles) // 2], broker)
        return type(self)(
            fitting,
            {
                b: order
                for b, order in self.splits.items()
                if self.assigned.get(b, assigned.get(b)) not in full
            },
            frozenset(b for b in self.gone if assigned.get(b) not in full),
        )
