"""Which locked bundles the broker is known to serve: what lookups may name it for."""

from collections.abc import Set as AbstractSet

from loadmanager.app.changes import Changes
from loadmanager.core.ids import BundleId
from loadmanager.core.ownership import Phase


class Serving:
    """The bundles whose lock this agent holds while the broker has not loaded them yet.

    A lookup that named the broker in that moment would send its client to be refused.
    ``version`` grows with every change of what may be named.
    """

    def __init__(self) -> None:
        self._loading: set[BundleId] = set()
        self.changes = Changes()
        self.version = 0

    @property
    def loading(self) -> AbstractSet[BundleId]:
        """What is locked, and not served yet."""
        return self._loading

    def awaited(self, bundle: BundleId) -> None:
        """The broker has to load it first, or again."""
        self._loading.add(bundle)
        self._tell()

    def begun(self, bundle: BundleId) -> bool:
        """The broker serves it; return whether that is new."""
        if bundle not in self._loading:
            return False
        self._loading.discard(bundle)
        self._tell()
        return True

    def phase_changed(self, bundle: BundleId, phase: Phase) -> None:
        """Take note of a bundle's new phase."""
        if phase is not Phase.OWNED:
            self._loading.discard(bundle)
        self._tell()

    def _tell(self) -> None:
        self.version += 1
        self.changes.tell()
