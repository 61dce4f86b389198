"""Checks lookups: an answer names a broker that the sidecar could still believe to be the owner.

A sidecar learns of a change by its watches. While it is connected to the service, its knowledge
is at most `PROPAGATION_S` plus the lag of its messages old; while it is disconnected, it is as
old as the disconnection.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from loadmanager.core import znodes
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.wire.records import decode_lock
from loadmanager.ports.lookup import Owner
from tests.testbed.faults.agent import Agent
from tests.testbed.faults.trace import Trace
from tests.testbed.faults.violation import Invariant, Report
from tests.testbed.memory.tree import Znode

PROPAGATION_S: Final = 0.25
"""Longest time until a connected sidecar learns of a change: some round trips of 4 ms."""

LAGS_IN_A_CHAIN: Final = 4
"""A change is learned by an event, two reads, and a third read if it changed meanwhile."""

_LOCKS = znodes.LOCKS + "/"
_BROKERS = znodes.BROKERS + "/"


@dataclass(slots=True)
class Spell:
    """Broker and token were valid from ``from_s`` until ``until_s``; None while they still are."""

    what: tuple[BrokerId | None, int]
    from_s: float
    until_s: float | None = None

    def was_so_after(self, moment_s: float) -> bool:
        """Return whether they were valid at ``moment_s`` or later."""
        return self.until_s is None or self.until_s >= moment_s


@dataclass(slots=True)
class _Touch:
    """Since when a sidecar is connected, and the lag of its messages.

    ``knows_since_s`` is the time up to which the sidecar knows every change. It is updated only
    while the sidecar is connected: messages that were late when the connection broke are lost.
    """

    in_touch_since_s: float | None = None
    knows_since_s: float = -PROPAGATION_S
    lag_s: float = 0.0
    lagged_until_s: float = 0.0


@dataclass(slots=True)
class AnswersWatch:
    trace: Trace
    report: Report
    held: defaultdict[BundleId, list[Spell]] = field(default_factory=lambda: defaultdict(list))
    registered: defaultdict[BrokerId, list[Spell]] = field(
        default_factory=lambda: defaultdict(list)
    )
    answered: int = 0
    stale: int = 0
    """The number of answers that named a broker after it had released or lost the lock."""
    _touch: defaultdict[str, _Touch] = field(default_factory=lambda: defaultdict(_Touch))
    _tokens: dict[tuple[str, BundleId], tuple[int, float]] = field(default_factory=dict)
    _epochs: dict[str, int] = field(default_factory=dict)

    def node_changed(self, path: str, was: Znode | None, now: Znode | None, at_s: float) -> None:
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
        """Record which sidecars are connected; call it after anything that may change that."""
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
        """Return the time after which the sidecar may have missed a change."""
        self.look_at_touch([agent], at_s)
        return self._touch[agent.context.identity.instance].knows_since_s

    def answer_given(self, agent: Agent, owner: Owner, at_s: float) -> None:
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
        token, then_s = self._tokens.get((name, owner.bundle), (0, at_s))
        # Answers at the same time have no order: lookups that wait together are answered in turn.
        if then_s < at_s and token > owner.fencing_token:
            seen = f"{answer} after token {token} at {then_s:.3f} s"
            self.report(Invariant.ANSWERS_GO_ON, owner.bundle, seen)
        if token <= owner.fencing_token:
            self._tokens[name, owner.bundle] = owner.fencing_token, at_s
        # Epoch 0: the sidecar knows no leader.
        if owner.epoch:
            before = self._epochs.get(name, 0)
            if owner.epoch < before:
                self.report(Invariant.ANSWERS_GO_ON, owner.bundle, f"{answer} after epoch {before}")
            self._epochs[name] = max(owner.epoch, before)


def _ephemeral(was: Znode | None, now: Znode | None) -> bool:
    """Return whether a lock was created, deleted or replaced; folders are no locks."""
    before = was.node.stat if was else None
    after = now.node.stat if now else None
    known = after or before
    replaced = before is None or after is None or before.czxid != after.czxid
    return known is not None and known.ephemeral_owner != 0 and replaced


def _end(spells: list[Spell], at_s: float) -> None:
    if spells and spells[-1].until_s is None:
        spells[-1].until_s = at_s
