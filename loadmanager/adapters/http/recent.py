from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """At most ``max_entries`` entries, in two generations.

    When the young generation is full it replaces the old one, whose entries are dropped; an entry
    found in the old generation moves to the young one. Every operation is one or two dictionary
    accesses: an exact order of use would cost more on each hit than a hit saves.
    """

    __slots__ = ("_generation_size", "_old", "_young")

    def __init__(self, max_entries: int) -> None:
        self._generation_size = max(1, max_entries // 2)
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, key: K) -> V | None:
        value = self._young.get(key)
        if value is None and self._old:
            value = self._old.pop(key, None)
            if value is not None:
                self.put(key, value)
        return value

    def put(self, key: K, value: V) -> None:
        if len(self._young) >= self._generation_size and key not in self._young:
            self._old = self._young
            self._young = {}
        self._old.pop(key, None)
        self._young[key] = value

    def drop(self, key: K) -> None:
        self._young.pop(key, None)
        self._old.pop(key, None)
