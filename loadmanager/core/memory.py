"""What strategies remember from round to round, as one value that goes in and out.

A strategy itself never changes: a new leader carries on from the stored memory, and
a test may start anywhere.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Self

from loadmanager.core.bounds import COUNT, TIME_S, TOTAL, Bound
from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.joint.state import JointState


def _nothing() -> Mapping[Any, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory of one strategy; each uses the fields it needs.

    ``usage`` holds the running usage of brokers, a fraction. ``high_hits`` and
    ``low_hits`` count rounds in which a broker stood out, ``rounds_over`` those in
    which the cluster as a whole did. ``planned`` says where bundles are to go that
    were shed with a destination. ``turn`` and ``turn_order`` belong to the
    round-robin. ``shed_at_s`` is when a broker was last part of a move. ``joint`` is what
    the joint strategy learned; it has a form of its own (`core.joint.document`).
    """

    usage: Mapping[BrokerId, float] = field(default_factory=_nothing)
    high_hits: Mapping[BrokerId, int] = field(default_factory=_nothing)
    low_hits: Mapping[BrokerId, int] = field(default_factory=_nothing)
    rounds_over: int = 0
    planned: Mapping[BundleId, BrokerId] = field(default_factory=_nothing)
    turn: int = 0
    turn_order: tuple[BrokerId, ...] = ()
    shed_at_s: Mapping[BrokerId, float] = field(default_factory=_nothing)
    joint: JointState | None = field(default=None, compare=False, repr=False)

    def only(self, brokers: Collection[BrokerId]) -> "Memory":
        """Return the memory without the running usage of brokers that left the cluster."""
        if all(broker in brokers for broker in self.usage):
            return self
        kept = {broker: value for broker, value in self.usage.items() if broker in brokers}
        return replace(self, usage=kept)

    def without(self, brokers: Collection[BrokerId]) -> "Memory":
        """Return the memory with nothing in it about brokers that began a new life."""
        if not brokers:
            return self
        return replace(
            self,
            usage=_dropped(self.usage, brokers),
            high_hits=_dropped(self.high_hits, brokers),
            low_hits=_dropped(self.low_hits, brokers),
            shed_at_s=_dropped(self.shed_at_s, brokers),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the memory as a JSON object."""
        return {
            "usage": dict(self.usage),
            "highHits": dict(self.high_hits),
            "lowHits": dict(self.low_hits),
            "roundsOver": self.rounds_over,
            "planned": dict(self.planned),
            "turn": self.turn,
            "turnOrder": list(self.turn_order),
            "shedAtS": dict(self.shed_at_s),
        }

    @classmethod
    def from_json(cls, where: str, found: object) -> Self:
        """Return the memory in a JSON object."""
        if not isinstance(found, dict):
            raise MalformedContent(where, ascii(found)[:80], "an object")
        order = found.get("turnOrder", [])
        if not isinstance(order, list) or not all(isinstance(item, str) for item in order):
            raise MalformedContent(where, "turnOrder", "a list of texts")
        return cls(
            usage=mapping_of(where, found, "usage", TOTAL),
            high_hits=mapping_of(where, found, "highHits", COUNT),
            low_hits=mapping_of(where, found, "lowHits", COUNT),
            rounds_over=_whole(where, found, "roundsOver"),
            planned=_texts(where, found, "planned"),
            turn=_whole(where, found, "turn"),
            turn_order=tuple(order),
            shed_at_s=mapping_of(where, found, "shedAtS", TIME_S),
        )


def _dropped(mapping: Mapping[BrokerId, Any], brokers: Collection[BrokerId]) -> dict[Any, Any]:
    return {broker: value for broker, value in mapping.items() if broker not in brokers}


def mapping_of(where: str, found: Mapping[str, Any], name: str, bound: Bound) -> Mapping[Any, Any]:
    """Return the figures in an object of a JSON object; an absent one is empty.

    Raises:
        MalformedContent: it is no object, or one of its figures is outside ``bound``.
    """
    value = found.get(name, {})
    if not isinstance(value, dict) or not all(map(bound.holds, value.values())):
        raise MalformedContent(where, name, f"an object of values, each {bound.expected}")
    return MappingProxyType(
        value if bound.whole else {key: float(item) for key, item in value.items()}
    )


def _texts(where: str, found: Mapping[str, Any], name: str) -> Mapping[Any, Any]:
    value = found.get(name, {})
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise MalformedContent(where, name, "an object of texts")
    return MappingProxyType(value)


def _whole(where: str, found: Mapping[str, Any], name: str) -> int:
    value = found.get(name, 0)
    if type(value) is not int or not COUNT.holds(value):
        raise MalformedContent(where, f"{name} = {ascii(value)[:80]}", COUNT.expected)
    return value
