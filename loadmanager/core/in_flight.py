from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TypeVar, overload

from loadmanager.core.ids import BrokerId, BundleId

T = TypeVar("T")


class Moved(Mapping[BundleId, BrokerId]):
    """An immutable mapping of bundles to their targets, created by `of` and `adding`.

    Values derived from one another share one dictionary, and each sees only the entries it was
    created with. Otherwise ten thousand successive placements would make ten thousand copies.
    """

    __slots__ = ("_count", "_shared")

    def __init__(self, shared: dict[BundleId, tuple[int, BrokerId]], count: int) -> None:
        self._shared = shared
        self._count = count

    @classmethod
    def of(cls, moves: Mapping[BundleId, BrokerId]) -> "Moved":
        if isinstance(moves, Moved):
            return moves
        shared = {bundle: (number, moves[bundle]) for number, bundle in enumerate(moves)}
        return cls(shared, len(shared))

    def adding(self, bundle: BundleId, target: BrokerId) -> "Moved":
        if bundle in self._shared or len(self._shared) > self._count:
            return Moved.of({**self, bundle: target})
        self._shared[bundle] = (self._count, target)
        return Moved(self._shared, self._count + 1)

    def __getitem__(self, bundle: BundleId) -> BrokerId:
        number, target = self._shared[bundle]
        if number >= self._count:
            raise KeyError(bundle)
        return target

    @overload
    def get(self, key: BundleId, /) -> BrokerId | None: ...
    @overload
    def get(self, key: BundleId, /, default: BrokerId | T) -> BrokerId | T: ...
    def get(self, key: BundleId, /, default: object = None) -> object:
        found = self._shared.get(key)
        return default if found is None or found[0] >= self._count else found[1]

    def __contains__(self, bundle: object) -> bool:
        found = self._shared.get(bundle)  # type: ignore[call-overload]  # any key may be asked for
        return found is not None and found[0] < self._count

    def __iter__(self) -> Iterator[BundleId]:
        return iter(list(islice(self._shared, self._count)))

    def __len__(self) -> int:
        return self._count
