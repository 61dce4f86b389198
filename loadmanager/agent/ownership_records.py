"""An agent's state of each bundle: one record per bundle, and sets derived from them.

A record is created when the orders or the broker name a bundle, and removed when neither does
and no operation is under way. Each change of a record updates the derived sets, so the cost of
finding work depends on what has changed, not on what is owned.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from loadmanager.core.ids import BundleId
from loadmanager.core.ownership import Phase, holds_lock, may_serve

_TAKING: Final = frozenset({Phase.ACQUIRING, Phase.ABANDONING})
_UNLIKE_ORDERED: Final = frozenset({Phase.FREE, Phase.ABANDONING})
_UNLIKE_UNORDERED: Final = frozenset({Phase.ACQUIRING, Phase.OWNED})


@dataclass(slots=True, eq=False)
class Ownership:
    """One bundle on one agent.

    ``token`` is the fencing token of the lock that this session holds or that the last one
    held, and ``broker_token`` that under which the broker last reported serving the
    bundle; 0 for none. ``command`` is the last command to the broker that has not ended.
    ``command_ended`` counts the commands of all bundles up to the last that ended of this one.
    """

    bundle: BundleId
    phase: Phase = Phase.FREE
    ordered: bool = False
    refused: bool = False
    """The lock was refused, and is not tried again before something changes."""
    loading: bool = False
    """The lock is held, and the broker does not serve the bundle yet."""
    token: int = 0
    broker_token: int = 0
    command: asyncio.Task[None] | None = None
    command_ended: int = 0
    made_of: tuple[BundleId, ...] = ()
    """The bundles that a split or merge on this broker replaced by this one (and others)."""
    made_into: tuple[BundleId, ...] = ()
    """The bundles by which a split on this broker replaced this one."""
    replaced: bool = False
    """Other bundles cover its range after a split or merge that the orders do not show yet."""


class OwnershipRecords:
    """The records of one agent by bundle.

    ``takes`` and ``drops`` are those whose locks are to be taken and dropped, in the order
    in which they became so. ``unsettled`` are those that a comparison with the orders may
    change: all others are as ordered, or have something to finish first.
    """

    def __init__(self) -> None:
        self._records: dict[BundleId, Ownership] = {}
        self._counts: Counter[Phase] = Counter()
        self.takes: dict[BundleId, Ownership] = {}
        self.drops: dict[BundleId, Ownership] = {}
        self.unsettled: dict[BundleId, Ownership] = {}
        self.loading: dict[BundleId, Ownership] = {}

    def __iter__(self) -> Iterator[Ownership]:
        """Iterate over a snapshot, so that records may change meanwhile."""
        return iter(tuple(self._records.values()))

    def get(self, bundle: BundleId) -> Ownership | None:
        return self._records.get(bundle)

    def of(self, bundle: BundleId) -> Ownership:
        record = self._records.get(bundle)
        if record is None:
            record = self._records[bundle] = Ownership(bundle)
        return record

    def phase(self, bundle: BundleId) -> Phase:
        record = self._records.get(bundle)
        return Phase.FREE if record is None else record.phase

    @property
    def phases(self) -> Mapping[BundleId, Phase]:
        return {one.bundle: one.phase for one in self if one.phase is not Phase.FREE}

    @property
    def tokens(self) -> dict[BundleId, int]:
        return {one.bundle: one.token for one in self if holds_lock(one.phase)}

    @property
    def count(self) -> int:
        return sum(self._counts[phase] for phase in Phase if phase is not Phase.FREE)

    @property
    def may_be_served(self) -> bool:
        return any(may_serve(phase) and self._counts[phase] for phase in Phase)

    def enter(self, record: Ownership, phase: Phase) -> None:
        self._counts[record.phase] -= 1
        self._counts[phase] += 1
        record.phase = phase
        record.loading &= phase is Phase.OWNED
        if phase is Phase.FREE:
            record.token = 0
            record.made_of = record.made_into = ()
            if record.command is None:
                record.command_ended = 0
        self.file(record)

    def file(self, record: Ownership) -> None:
        """Update the derived sets after a change of a record; remove it if no longer needed."""
        phase = record.phase
        unlike = _UNLIKE_ORDERED if record.ordered else _UNLIKE_UNORDERED
        _put(self.takes, record, phase in _TAKING)
        _put(self.drops, record, phase is Phase.DROPPING)
        _put(self.loading, record, record.loading)
        _put(self.unsettled, record, record.refused or phase in unlike)
        idle = record.command is None and not record.command_ended
        if phase is Phase.FREE and idle and not record.ordered and not record.refused:
            self._records.pop(record.bundle, None)


def _put(records: dict[BundleId, Ownership], record: Ownership, belongs: bool) -> None:
    if belongs:
        records.setdefault(record.bundle, record)
    else:
        records.pop(record.bundle, None)
