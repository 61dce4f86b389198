"""Checks how long the cluster has no leader, and whether a fault explains it.

The time counts while no sidecar leads, from the last fault on, and only while the service has a
majority and at least one sidecar is healthy. A sidecar leads if its session holds the election
node and its term has begun.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from loadmanager.config import Config
from loadmanager.core import znodes
from tests.testbed.faults.agent import SESSION_S, Agent
from tests.testbed.faults.violation import Invariant, Report
from tests.testbed.memory.tree import Znode

_ELECTION_S: Final = 5.0
"""For noticing the free node, a lost race or reply, and the first reads of a term."""

LAGS_TO_A_LEADER: Final = 4
"""Late replies that follow one another before a leader is at work, beyond what 16 s hold.

That a late sidecar leads takes up to seven after its election, while a healthy one waits for it.
"""


def led_within_s(config: Config) -> float:
    """Return the bound: the session of the last leader, a tick, and the election."""
    return SESSION_S + config.leader.tick_interval_s + _ELECTION_S


@dataclass(slots=True)
class LeaderWatch:
    """Checks at intervals whether there is a leader."""

    within_s: float
    report: Report
    longest_s: float = 0.0
    """The longest counted time without a leader."""
    _undisturbed_since_s: float = 0.0
    _led_at_s: float = 0.0

    def disturbed(self, at_s: float) -> None:
        self._undisturbed_since_s = at_s

    def look(self, at_s: float, *, led: bool, healthy: bool, lag_s: float = 0.0) -> None:
        """Check the time without a leader; replies are up to ``lag_s`` late."""
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
    """Return whether the term of the sidecar that holds the election node has begun."""
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
    return any(is_healthy(agent) for agent in agents)


def is_healthy(agent: Agent) -> bool:
    """Return whether a sidecar is registered, connected, not stopping, and has its broker."""
    return (
        agent.host.obeys
        and agent.coordination.in_touch
        and not agent.coordination.lag_s
        and not agent.stop.is_set()
        and agent.application is not None
        and agent.app.member.registered
    )
