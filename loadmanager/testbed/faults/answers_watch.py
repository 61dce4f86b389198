"""Watching lookups: an answer names a broker that the answering sidecar could take for the owner.

What a sidecar knows is late by what its watches take. While it is in touch with the
service that is `PROPAGATION_S`, and its messages' lag where they have one; while it is
not, all the time since it was.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from loadmanager.adapters.memory.tree import Znode
from loadmanager.core import znodes
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.wire import decode_lock
from loadmanager.ports import Owner
from loadmanager.testbed.faults.agent import Agent
from loadmanager.testbed.faults.trace import Trace
from loadmanager.testbed.faults.violation import Invariant, Report

PROPAGATION_S: Final = 0.25
"""How long a change takes at most to reach a sidecar in touch: some round trips of 4 ms."""

LAGS_IN_A_CHAIN: Final = 4
"""A change is heard of by an event, two reads, and one more if it changed meanwhile."""

_LOCKS = znodes.LOCKS + "/"
_BROKERS = znodes.BROKERS + "/"


@dataclass(slots=True)
class Spell:
    """Something was so from ``from_s`` until ``until_s``, None while it is."""

    what: tuple[BrokerId | None, int]
    from_s: float
    until_s: float | None = None

    def was_so_after(self, moment_s: float) -> bool:
        """Return whether it was so at ``moment_s`` or later."""
        return self.until_s is None or self.until_s >= moment_s


@dataclass(slots=True)
class _Touch:
    """When a sidecar was in touch with the service, and how late its messages are.

    ``knows_since_s`` is worked out while it is in touch, and then stays: messages that were
    late when the connection broke are lost, however long ago that is.
    """

    in_touch_since_s: float | None = None
    knows_since_s: float = -PROPAGATION_S
    lag_s: float = 0.0
    lagged_until_s: float = 0.0


@dataclass(slots=True)
class _Answered:
    """What one sidecar answered last for one bundle."""

    token: int
    at_s: float


@dataclass(slots=True)
class AnswersWatch:
    """Holds each answer to the history of locks and registrations."""

    trace: Trace
    report: Report
    held: defaultdict[BundleId, list[Spell]] = field(default_factory=lambda: defaultdict(list))
    registered: defaultdict[BrokerId, list[Spell]] = field(
        default_factory=lambda: defaultdict(list)
    )
    answered: int = 0
    stale: int = 0
    """Answers that named a broker after it had given the lock back or lost it."""
    _touch: defaultdict[str, _Touch] = field(default_factory=lambda: defaultdict(_Touch))
    _tokens: dict[tuple[str, BundleId], _Answered] = field(default_factory=dict)
    _epochs: dict[str, int] = field(default_factory=dict)

    def node_changed(self, path: str, was: Znode | None, now: Znode | None, at_s: float) -> None:
        """Take note of a lock or a registration that came or went."""
        if path.startswith(_LOCKS) and _ephemeral(was, now):
            token = now.node.stat.czxid if now else 0
            content = now.node.data if now else b""
            spells = self.held[BundleId(path.removeprefix(_LOCKS))]
            _end(spells, at_s)
            if now is not None:
                spells.append(Spell((decode_lock(path, content).broker, token), at_s))
        elif path.startswith(_BROKERS):
            broker = BrokerId(path.removeprefix(_BROKERS))
            spells = self.registered[broker]
            if now is None:
                _end(spells, at_s)
            elif was is None or was.node.stat.czxid != now.node.stat.czxid:
                _end(spells, at_s)
                spells.append(Spell((broker, now.node.stat.czxid), at_s))

    def look_at_touch(self, agents: Iterable[Agent], at_s: float) -> None:
        """Record which sidecars are in touch; to be called after anything that may change it."""
        for agent in agents:
            touch = self._touch[agent.context.identity.instance]
            lag_s = agent.coordination.lag_s * LAGS_IN_A_CHAIN
            if lag_s:
                touch.lag_s, touch.lagged_until_s = max(lag_s, touch.lag_s), at_s + lag_s
            elif at_s > touch.lagged_until_s:
                touch.lag_s = 0.0
            if not agent.coordination.in_touch:
                touch.in_touch_since_s = None
                continue
            if touch.in_touch_since_s is None:
                touch.in_touch_since_s = at_s
            if at_s - touch.in_touch_since_s >= PROPAGATION_S + touch.lag_s:
                touch.knows_since_s = at_s - PROPAGATION_S - touch.lag_s

    def knows_since_s(self, agent: Agent, at_s: float) -> float:
        """Return the moment since when the sidecar may have missed something."""
        self.look_at_touch([agent], at_s)
        return self._touch[agent.context.identity.instance].knows_since_s

    def answer_given(self, agent: Agent, owner: Owner, at_s: float) -> None:
        """Look at an answer, in the moment it is given."""
        self.answered += 1
        name = agent.context.identity.instance
        text = f"{name} answered {owner.broker} token {owner.fencing_token} epoch {owner.epoch}"
        self.trace.add("answer", f"{owner.bundle} {text}")
        since_s = self.knows_since_s(agent, at_s)
        grant = (owner.broker, owner.fencing_token)
        held = self.held[owner.bundle]
        self.stale += not any(one.what == grant and one.until_s is None for one in held)
        if not any(one.what == grant and one.was_so_after(since_s) for one in held):
            seen = f"{text}, which it did not own from {since_s:.3f} s on: {held[-3:]}"
            self.report(Invariant.LOOKUPS_NAME_OWNERS, owner.bundle, seen)
        elif not any(one.was_so_after(since_s) for one in self.registered[owner.broker]):
            seen = f"{text}, which was not registered from {since_s:.3f} s on"
            self.report(Invariant.LOOKUPS_NAME_OWNERS, owner.bundle, seen)
        self._compare_with_last(name, owner, text, at_s)

    def _compare_with_last(self, name: str, owner: Owner, answer: str, at_s: float) -> None:
        last = self._tokens.get((name, owner.bundle))
        # Answers of one instant have no order: clients that wait together are answered in turn.
        if last is not None and last.at_s < at_s and last.token > owner.fencing_token:
            seen = f"{answer} after token {last.token} at {last.at_s:.3f} s"
            self.report(Invariant.ANSWERS_GO_ON, owner.bundle, seen)
        if last is None or last.token <= owner.fencing_token:
            self._tokens[name, owner.bundle] = _Answered(owner.fencing_token, at_s)
        # 0 says that no leader is known.
        if owner.epoch:
            before = self._epochs.get(name, 0)
            if owner.epoch < before:
                self.report(Invariant.ANSWERS_GO_ON, owner.bundle, f"{answer} after epoch {before}")
            self._epochs[name] = max(owner.epoch, before)


def _ephemeral(was: Znode | None, now: Znode | None) -> bool:
    """Return whether it is a lock that came, went or was made again: folders are none."""
    before = was.node.stat if was else None
    after = now.node.stat if now else None
    known = after or before
    replaced = before is None or after is None or before.czxid != after.czxid
    return known is not None and known.ephemeral_owner != 0 and replaced


def _end(spells: list[Spell], at_s: float) -> None:
    if spells and spells[-1].until_s is None:
        spells[-1].until_s = at_s
