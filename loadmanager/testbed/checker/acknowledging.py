"""Every acknowledged message was taken by the owner of its topic, at that very moment."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from loadmanager.core.errors import InvalidName
from loadmanager.core.hashing import FULL_RANGE_END, HashName, position
from loadmanager.core.ids import BundleId, namespace_of, parse_full_topic, range_of
from loadmanager.testbed.checker.publishing import Acknowledgement, Publish
from loadmanager.testbed.checker.serving import Spell, share_positions


class Why(StrEnum):
    """What is wrong with an acknowledgement."""

    NOT_SERVING = "its broker did not serve the bundle under that token then"
    NEWER_OWNER = "another broker served the bundle under a newer token then"
    OTHER_BROKER = "it was sent to another broker than the one that took it"
    OTHER_BUNDLE = "the topic does not lie in the bundle"
    OTHER_TIME = "it was taken before it was sent or after it was answered"


@dataclass(frozen=True, slots=True)
class Misplaced:
    """An acknowledged message that no broker had the right to take."""

    publish: Publish
    why: Why

    def __str__(self) -> str:
        """Return it as a sentence."""
        said = self.publish.acknowledgement
        return f"{self.publish.topic} was taken by {self.publish.broker}: {self.why} ({said})"


def misplaced(
    spells: Iterable[Spell], publishes: Iterable[Publish], hash_name: HashName
) -> list[Misplaced]:
    """Return every acknowledged message with what is wrong with it first."""
    record = _Record(spells, hash_name)
    found: list[Misplaced] = []
    for publish in publishes:
        said = publish.acknowledgement
        why = None if said is None else record.fault(publish, said)
        if why is not None:
            found.append(Misplaced(publish, why))
    return found


class _Record:
    """The brokers' spells, by grant and by the part of the circle."""

    def __init__(self, spells: Iterable[Spell], hash_name: HashName) -> None:
        self._spells = list(spells)
        self._hash_name = hash_name
        self._rivals: dict[BundleId, Sequence[Spell]] = {}
        by_grant: defaultdict[tuple[str, BundleId, int], list[Spell]] = defaultdict(list)
        for one in self._spells:
            by_grant[one.incarnation, one.bundle, one.fencing_token].append(one)
        self._by_grant: Mapping[tuple[str, BundleId, int], Sequence[Spell]] = by_grant

    def fault(self, publish: Publish, said: Acknowledgement) -> Why | None:
        """Return what is wrong with an acknowledgement, None if nothing."""
        if not publish.sent_s <= said.clock_s <= publish.answered_s:
            return Why.OTHER_TIME
        if not _holds(said.bundle, publish.topic, self._hash_name):
            return Why.OTHER_BUNDLE
        grant = said.incarnation, said.bundle, said.fencing_token
        # The last message of a bundle that is let go ends its serving at that instant.
        at_s = said.clock_s
        serving = [s for s in self._by_grant.get(grant, ()) if s.start_s <= at_s <= s.end_s]
        if not serving:
            return Why.NOT_SERVING
        if all(one.broker != publish.broker for one in serving):
            return Why.OTHER_BROKER
        newer = any(
            one.incarnation != said.incarnation
            and one.fencing_token > said.fencing_token
            and one.start_s < at_s < one.end_s
            for one in self._rivals_of(said.bundle)
        )
        return Why.NEWER_OWNER if newer else None

    def _rivals_of(self, bundle: BundleId) -> Sequence[Spell]:
        if bundle not in self._rivals:
            sharing = [one for one in self._spells if share_positions(one.bundle, bundle)]
            self._rivals[bundle] = sharing
        return self._rivals[bundle]


def _holds(bundle: BundleId, topic: str, hash_name: HashName) -> bool:
    """Return whether the topic lies in the bundle; the last one holds the circle's end too."""
    try:
        name = parse_full_topic(topic)
    except InvalidName:
        return False
    lower, upper = range_of(bundle)
    at = position(name, hash_name)
    inside = lower <= at < upper or at == upper == FULL_RANGE_END
    return name.namespace == namespace_of(bundle) and inside
