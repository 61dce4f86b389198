"""The owners of bundles, from the owned lists that the brokers' sidecars write.

A list may be stale: that costs a client one more hop, never a second owner, because only the
lock in ZooKeeper decides which broker serves. Each change of a list is reported to every sidecar,
and most of them do not need it, nor all lists at their start. So a list is read at once only
while it is followed here: the leader follows all lists, a lookup that waits that of the planned
owner (all, where it is not known and they are few), and a bundle that this broker is ordered to
take that of the broker that still has it.
Else a list is read when a lookup or request needs it. Where there are few, all are read at once,
otherwise one a second of those that have been left unread for a while. A list that changed, also
while this sidecar was not connected, and was not read names no owner.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from loadmanager.common.subscriptions import Subscriptions
from loadmanager.common.watched_folder import WatchedFolder
from loadmanager.core import znodes
from loadmanager.core.ids import BrokerId, BundleId, parse_broker
from loadmanager.core.orders import OwnedList, decode_owned
from loadmanager.ports.coordination import Coordination, Node
from loadmanager.ports.host import Clock
from loadmanager.ports.lookup import Unavailable
from loadmanager.telemetry.metrics import Metrics

_OWNS_NOTHING: Final = OwnedList({})

READ_AHEAD: Final = 16
"""Up to how many brokers lists that are not followed here are read at once: so many in as many
seconds."""

UNREAD_FOR_S: Final = 30.0
"""How long a list is left unread where there are more. A list that changed changes again soon: a
move changes it three times, and in a cold start each broker's list changes again and again."""

_READS_PER_S: Final = 1.0
_READ_WITHIN_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Holding:
    """The broker that lists a bundle as owned, with the fencing token of the lock.

    ``serving`` is False while the broker holds the lock but has not loaded the bundle yet.
    """

    broker: BrokerId
    fencing_token: int
    serving: bool = True


class ClusterOwners:
    """The owned lists of all brokers, joined; ``changes`` notifies that they were read.

    ``answers_changed`` is called when the owner in an answer may have changed.
    """

    def __init__(
        self,
        coordination: Coordination,
        clock: Clock,
        metrics: Metrics,
        *,
        answers_changed: Callable[[], None],
        completed: Callable[[], None],
        read_ahead: int,
    ) -> None:
        self._clock = clock
        self._answers_changed = answers_changed
        self._read_ahead = read_ahead
        self._reads_left: float = read_ahead
        self._counted_at_s = -math.inf
        self._followers: Counter[BrokerId | None] = Counter()
        self._needs: list[Callable[[BrokerId], object]] = []
        self._unread_since_s: dict[BrokerId, float] = {}
        self._owners: dict[BundleId, Holding] = {}
        self.changes = Subscriptions()
        self._lists = WatchedFolder(
            coordination,
            znodes.OWNED,
            read=self._read_list,
            changed=self._list_changed,
            malformed=lambda: metrics.malformed("owned"),
            completed=completed,
            postpone=self._postpones,
        )
        self.open, self.close = self._lists.open, self._lists.close

    @property
    def complete(self) -> bool:
        """Whether the existing lists are known, and each was read or left unread for now."""
        return self._lists.complete

    @property
    def holdings(self) -> Mapping[BundleId, Holding]:
        """The broker that lists each bundle as owned, by the lists as read last."""
        return self._owners

    def listing(self, bundle: BundleId) -> tuple[BrokerId, ...]:
        """Return all brokers that list a bundle, by the lists as read last."""
        lists = self._lists.values.items()
        return tuple(BrokerId(name) for name, one in lists if bundle in one.tokens)

    @property
    def all_read(self) -> bool:
        """Whether no new or changed list is left unread, as far as reported."""
        return not self._lists.postponed

    @property
    def few(self) -> bool:
        """Whether there are so few lists that they are read at once."""
        return len(self._lists.names) <= self._read_ahead

    def is_read(self, broker: BrokerId) -> bool:
        return broker not in self._lists.postponed

    def read_list(self, broker: BrokerId) -> None:
        self._lists.read(broker)

    def read_all(self) -> None:
        for name in tuple(self._lists.postponed):
            self._lists.read(name)

    async def until_read(self, within_s: float, broker: BrokerId | None = None) -> bool:
        """Read the list of ``broker``, or all, if changed; return whether that was in time."""
        if broker is None:
            self.read_all()
            return await self.changes.until(lambda: self.all_read, self._clock, within_s)
        self.read_list(broker)
        return await self.changes.until(lambda: self.is_read(broker), self._clock, within_s)

    async def require_read(self, broker: BrokerId | None = None) -> None:
        """Read changed lists: that of ``broker``, or all. Raises `Unavailable`: not read now."""
        if not await self.until_read(_READ_WITHIN_S, broker):
            raise Unavailable("the lists of owned bundles cannot be read now")

    def read_next(self) -> None:
        """Read the list that has been left unread longest, if it is time for one."""
        while (first := next(iter(self._unread_since_s), None)) and self.is_read(first):
            del self._unread_since_s[first]
        if first is None:
            return
        unread_s = self._clock.monotonic_s() - self._unread_since_s[first]
        if self._has_turn() if self.few else unread_s >= UNREAD_FOR_S:
            self._lists.read(first)

    @contextmanager
    def followed(self, broker: BrokerId | None = None) -> Iterator[None]:
        """Have the list of ``broker``, or all, read, and further changes at once, meanwhile."""
        self._followers[broker] += 1
        if broker is None:
            self.read_all()
        else:
            self.read_list(broker)
        try:
            yield
        finally:
            self._followers[broker] -= 1
            if not self._followers[broker]:
                del self._followers[broker]

    def follow_while(self, needed: Callable[[BrokerId], object]) -> None:
        """Read further changes of a broker's list at once whenever ``needed(broker)`` is true."""
        self._needs.append(needed)

    def _postpones(self, name: str) -> bool:
        broker = BrokerId(name)
        if self._followers[None] or self._followers[broker]:
            return False
        if any(needed(broker) for needed in self._needs) or (self.few and self._has_turn()):
            return False
        self._unread_since_s.pop(broker, None)  # To the end, because it changed last.
        self._unread_since_s[broker] = self._clock.monotonic_s()
        self._answers_changed()
        return True

    def _has_turn(self) -> bool:
        now_s = self._clock.monotonic_s()
        saved = (now_s - self._counted_at_s) * _READS_PER_S
        self._reads_left = min(self._reads_left + saved, self._read_ahead)
        self._counted_at_s = now_s
        if self._reads_left < 1:
            return False
        self._reads_left -= 1
        return True

    def _read_list(self, name: str, node: Node) -> OwnedList:
        path = f"{znodes.OWNED}/{parse_broker(name)}"
        owned, former = decode_owned(path, node.data, node.stat.mzxid), self._lists.values.get(name)
        if former is None:
            return owned
        # What did not change is kept as the same objects, which `_owners` refers to as well.
        tokens = {
            one: token for one, token in former.tokens.items() if owned.tokens.get(one) == token
        }
        tokens.update((one, token) for one, token in owned.tokens.items() if one not in tokens)
        return OwnedList(MappingProxyType(tokens), owned.loading)

    def _list_changed(self, name: str, before: OwnedList | None, after: OwnedList | None) -> None:
        broker = BrokerId(name)
        former, now = before or _OWNS_NOTHING, after or _OWNS_NOTHING
        for bundle in [bundle for bundle in former.tokens if bundle not in now.tokens]:
            holding = self._owners.get(bundle)
            if holding and holding.broker == broker:
                del self._owners[bundle]
                self._take_from_other_lists(bundle)
        for bundle, token in now.tokens.items():
            loading = bundle in now.loading
            if former.tokens.get(bundle) == token and loading == (bundle in former.loading):
                continue  # As most entries of a long list: nothing changed for it.
            holding = self._owners.get(bundle)
            # Two lists may briefly contain a bundle; the later lock determines the owner.
            if holding is None or holding.broker == broker or holding.fencing_token < token:
                self._owners[bundle] = Holding(broker, token, not loading)
        self._answers_changed()
        self.changes.notify()

    def _take_from_other_lists(self, bundle: BundleId) -> None:
        claims = [
            Holding(BrokerId(name), listed.tokens[bundle], bundle not in listed.loading)
            for name, listed in self._lists.values.items()
            if bundle in listed.tokens
        ]
        if claims:
            self._owners[bundle] = max(claims, key=lambda claim: claim.fencing_token)
