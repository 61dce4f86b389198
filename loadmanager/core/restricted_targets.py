"""Which brokers may take bundles with policies, while a strategy chooses its moves."""

from dataclasses import dataclass, replace

from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Mask
from loadmanager.core.filters import Filters
from loadmanager.core.in_flight import Moved


@dataclass(slots=True)
class RestrictedTargets:
    """Asks the filters, on the view with the moves that were chosen so far."""

    view: ClusterView
    filters: Filters

    def targets(self, bundle: int) -> Mask:
        """Return which broker rows may take the bundle of that row."""
        return self.filters.eligible(self.view, self.view.bundles.names[bundle]).mask

    def moved(self, bundle: int, target: int) -> None:
        """Count a move that was chosen."""
        name = self.view.bundles.names[bundle]
        moved = Moved.of(self.view.moved).adding(name, self.view.brokers.names[target])
        self.view = replace(self.view, moved=moved)
