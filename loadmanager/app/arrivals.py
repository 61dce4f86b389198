"""How each order came to its end, for history: when it was written, let go of and taken up."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from loadmanager.app.parts import Parts
from loadmanager.core.history import HandOver
from loadmanager.core.ids import BrokerId, BundleId


@dataclass(frozen=True, slots=True)
class _Moment:
    at_ms: int
    at_s: float


@dataclass(slots=True)
class _Order:
    source: BrokerId | None
    target: BrokerId
    ordered: _Moment
    released: _Moment | None = None


class Arrivals:
    """Follows the orders of one term by the owners in the picture.

    A source has let go when its list names the bundle no more, and a target has it when
    its list says that it serves it: what clients waited lies between.
    """

    def __init__(self, parts: Parts, epoch: int, ended: Callable[[HandOver], None]) -> None:
        self._parts = parts
        self._epoch = epoch
        self._ended = ended
        self._orders: dict[BundleId, _Order] = {}

    def ordered(self, moves: Mapping[BundleId, BrokerId]) -> None:
        """Follow what was ordered now, to these brokers."""
        now, owners = self._now(), self._parts.picture.owners
        for bundle, target in moves.items():
            former = self._orders.get(bundle)
            if former is not None and former.target == target:
                continue
            if former is not None:
                self._end(bundle, "replaced", None)
            holding = owners.get(bundle)
            source = holding.broker if holding else None
            if source != target:
                self._orders[bundle] = _Order(source, target, now)
        self.look()

    def look(self) -> None:
        """Compare with the owners as they are now."""
        now, owners = self._now(), self._parts.picture.owners
        for bundle, order in list(self._orders.items()):
            holding = owners.get(bundle)
            owner = holding.broker if holding else None
            if order.source is not None and order.released is None and owner != order.source:
                order.released = now
            if holding is not None and owner == order.target and holding.serving:
                self._end(bundle, "finished", now)

    def tend(self, assigned: Mapping[BundleId, BrokerId]) -> None:
        """Give up what is ordered no more, or elsewhere."""
        for bundle, order in list(self._orders.items()):
            if assigned.get(bundle) != order.target:
                self._end(bundle, "replaced", None)

    def end(self) -> None:
        """Give up everything: the term is over."""
        for bundle in list(self._orders):
            self._end(bundle, "left", None)

    def _now(self) -> _Moment:
        clock = self._parts.clock
        return _Moment(clock.wall_ms(), clock.monotonic_s())

    def _end(self, bundle: BundleId, outcome: str, acquired: _Moment | None) -> None:
        order = self._orders.pop(bundle)
        ordered, released = order.ordered, order.released
        # Whoever has nobody's bundle kept its clients waiting since the order at least.
        paused_since = ordered if order.source is None else released
        self._ended(
            HandOver(
                epoch=self._epoch,
                bundle=bundle,
                source=order.source,
                target=order.target,
                outcome=outcome,
                ordered_at_ms=ordered.at_ms,
                released_at_ms=released.at_ms if released else None,
                acquired_at_ms=acquired.at_ms if acquired else None,
                took_s=acquired.at_s - ordered.at_s if acquired else None,
                pause_s=acquired.at_s - paused_since.at_s if acquired and paused_since else None,
            )
        )
