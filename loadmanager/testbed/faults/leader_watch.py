"""Watching for a leader: how long there was none, and whether a fault accounts for it.

The clock of the bound runs while no sidecar leads, from the last fault on, as long as the
service has a majority and one sidecar is healthy. To lead is to hold the election node with
a living session and to be at work as the leader.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from loadmanager.adapters.memory.tree import Znode
from loadmanager.config import Config
from loadmanager.core import znodes
from loadmanager.testbed.faults.agent import SESSION_S, Agent
from loadmanager.testbed.faults.violation import Invariant, Report

_ELECTION_S: Final = 5.0
"""For noticing that the node is free, a lost race or reply, and what a term reads at first."""

LAGS_TO_A_LEADER: Final = 4
"""The leader, the epoch, the commit, and what was ordered: each waits for a late reply."""


def led_within_s(config: Config) -> float:
    """Return the bound: the session of the last leader, a tick, and the election."""
    return SESSION_S + config.leader.tick_interval_s + _ELECTION_S


@dataclass(slots=True)
class LeaderWatch:
    """Checks at intervals that there is a leader."""

    within_s: float
    report: Report
    longest_s: float = 0.0
    """The longest that the clock of the bound ran."""
    _undisturbed_since_s: float = 0.0
    _led_at_s: float = 0.0

    def disturbed(self, at_s: float) -> None:
        """Begin to count from zero: something has just been broken."""
        self._undisturbed_since_s = at_s

    def look(self, at_s: float, *, led: bool, healthy: bool, lag_s: float = 0.0) -> None:
        """Compare the time without a leader with the bound; replies are up to ``lag_s`` late."""
        if not healthy:
            self.disturbed(at_s)
        if led:
            self._led_at_s = at_s
            return
        within_s = self.within_s + LAGS_TO_A_LEADER * lag_s
        passed_s = at_s - max(self._led_at_s, self._undisturbed_since_s)
        self.longest_s = max(self.longest_s, passed_s)
        if passed_s > within_s:
            seen = f"no leader for {passed_s:.1f} s; bound {within_s:.1f} s"
            self.report(Invariant.SOMEBODY_LEADS, znodes.LEADER, seen)


def any_sidecar_leads(agents: Iterable[Agent], nodes: Mapping[str, Znode]) -> bool:
    """Return whether the holder of the election node is at work as the leader."""
    node = nodes.get(znodes.LEADER)
    if node is None:
        return False
    holder = node.node.stat.ephemeral_owner
    return any(
        agent.coordination.session.session_id == holder
        and agent.application is not None
        and agent.app.leading.leader_term is not None
        for agent in agents
    )


def any_sidecar_healthy(agents: Iterable[Agent]) -> bool:
    """Return whether one sidecar could lead now: well, in touch, and its broker with it."""
    return any(is_healthy(agent) for agent in agents)


def is_healthy(agent: Agent) -> bool:
    """Return whether a sidecar is registered, in touch and to stay, and its broker obeys."""
    return (
        agent.host.obeys
        and agent.coordination.in_touch
        and not agent.coordination.lag_s
        and not agent.stop.is_set()
        and agent.application is not None
        and agent.app.member.registered
    )
