"""Averages that are made only if somebody looks: of ten thousand bundles they take a while."""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

from loadmanager.core.averages import BundleAverages
from loadmanager.core.ids import BundleId


class Later(Mapping[BundleId, BundleAverages]):
    """What ``make`` returns when it is first asked for. Look at once: the leader goes on."""

    def __init__(self, make: Callable[[], Mapping[BundleId, BundleAverages]]) -> None:
        self._make = make

    @cached_property
    def _made(self) -> Mapping[BundleId, BundleAverages]:
        return self._make()

    def __getitem__(self, bundle: BundleId) -> BundleAverages:
        """Return the averages of a bundle."""
        return self._made[bundle]

    def __iter__(self) -> Iterator[BundleId]:
        """Yield every bundle."""
        return iter(self._made)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._made)
