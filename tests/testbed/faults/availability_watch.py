"""Checks how long bundles are not served, and whether a fault explains it.

The time of a bundle that was served before and whose namespace exists counts while no broker
serves it, from the last fault on, and only while the service has a majority and at least one
broker is fit. A broker is fit if it executes commands, has no drain mark, and its sidecar is
registered, connected and not stopping.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Final

from loadmanager.config import Config
from loadmanager.core import znodes
from loadmanager.core.ids import BundleId
from tests.testbed.checker.availability import share_positions
from tests.testbed.faults.agent import SESSION_S, Agent
from tests.testbed.faults.host import CONTROL_TIMEOUT_S, Host
from tests.testbed.faults.violation import Invariant, Report
from tests.testbed.faults.watches import is_healthy, led_within_s

LOOK_EVERY_S: Final = 0.5
LAGS_TO_A_NEW_OWNER: Final = 4
"""A leader with late replies reads absent brokers and orders, and writes two orders."""

_PLACED_S: Final = 10.0
"""For the next lookup, the decision, the lock and the load, with one failure in each."""

PATIENCE_S: Final = 5.0
"""Timeout of a lookup at the client."""
ASK_AGAIN_S: Final = 2.0
"""Pause of the client between two lookups."""
ASKED_FOR_S: Final = PATIENCE_S + ASK_AGAIN_S
"""How long a lookup at a healthy sidecar counts. The client repeats it by then, but possibly at
a frozen sidecar; a leader only learns of lookups at healthy sidecars."""

_RETRIES_S: Final = 4.0
"""A lost election, a lost order, a refused lock and a failed load, each retried once."""


def served_again_within_s(config: Config) -> float:
    """Return the bound: the longest time to a new owner after the last fault.

    First the session of the former owner, or of the leader, expires, which takes a whole timeout.
    Then one of two follows. A fault may hit the next owner while it is being chosen: its lease
    expires, and its sidecar registers again. Or the leader waits for many absent brokers, which
    takes longer than the first case at a broker that takes their bundles. The leader notices
    within a tick.
    """
    lease_s = config.ownership.self_fence_fraction * SESSION_S
    renewal_s = config.ownership.heartbeat_fraction * SESSION_S + CONTROL_TIMEOUT_S
    next_s = max(lease_s + renewal_s, config.leader.return_wait_s)
    return SESSION_S + next_s + config.leader.tick_interval_s + _RETRIES_S


def served_when_asked_within_s(config: Config) -> float:
    """Return the bound for looked-up bundles: a leader is elected, and places the bundle."""
    return led_within_s(config) + _PLACED_S


@dataclass(frozen=True, slots=True)
class _Asked:
    """Since when lookups wait for a bundle, less the pauses between them, and until when."""

    since_s: float
    until_s: float


@dataclass(slots=True)
class AvailabilityWatch:
    """Checks every `LOOK_EVERY_S`, which is the precision of its times."""

    within_s: float
    asked_within_s: float
    report: Report
    longest_s: float = 0.0
    """The longest counted time of a bundle that was served before."""
    longest_asked_s: float = 0.0
    """The longest counted time of a bundle that was only looked up."""
    _undisturbed_since_s: float = 0.0
    _wanted: set[BundleId] = field(default_factory=set)
    _asked: dict[BundleId, _Asked] = field(default_factory=dict)
    _erased: set[BundleId] = field(default_factory=set)
    _missing_since_s: dict[BundleId, float] = field(default_factory=dict)

    def disturbed(self, at_s: float) -> None:
        self._undisturbed_since_s = at_s

    def look(
        self,
        bundles: Iterable[BundleId],
        hosts: Iterable[Host],
        fit: bool,
        at_s: float,
        lag_s: float = 0.0,
    ) -> None:
        """Compare the expected with the served bundles; replies are up to ``lag_s`` late."""
        if not fit:
            self.disturbed(at_s)
        served = {bundle for host in hosts for bundle in host.serving}
        standing = list(bundles)
        # Bundles of a deleted namespace that are still served are not expected any more.
        self._wanted.update(bundle for bundle in standing if bundle in served)
        expected = [b for b in standing if b in self._wanted and b not in self._erased]
        missing = [bundle for bundle in expected if bundle not in served]
        self._missing_since_s = {
            bundle: self._missing_since_s.get(bundle, at_s) for bundle in missing
        }
        self._look_at_asked(standing, served, at_s, lag_s)
        within_s = self.within_s + LAGS_TO_A_NEW_OWNER * lag_s
        for bundle in missing:
            since_s = max(self._missing_since_s[bundle], self._undisturbed_since_s)
            self.longest_s = max(self.longest_s, at_s - since_s)
            if at_s - since_s > within_s:
                seen = f"not served for {at_s - since_s:.1f} s; bound {within_s:.1f} s"
                self.report(Invariant.SERVED_AGAIN, bundle, seen)

    def asked(self, bundle: BundleId, at_s: float) -> None:
        """Expect a bundle for which a lookup at a healthy sidecar began."""
        since_s = at_s
        if (former := self._asked.get(bundle)) is not None:
            begun_s = max(former.since_s, self._undisturbed_since_s)
            since_s = begun_s + max(at_s - max(former.until_s, begun_s), 0.0)
        self._asked[bundle] = _Asked(since_s, at_s + ASKED_FOR_S)

    def answered(self, bundle: BundleId) -> None:
        self._asked.pop(bundle, None)

    def _look_at_asked(
        self, standing: Container[BundleId], served: Container[BundleId], at_s: float, lag_s: float
    ) -> None:
        self._asked = {
            bundle: asked
            for bundle, asked in self._asked.items()
            if bundle in standing and bundle not in served
        }
        within_s = self.asked_within_s + LAGS_TO_A_NEW_OWNER * lag_s
        for bundle, asked in self._asked.items():
            passed_s = min(at_s, asked.until_s) - max(asked.since_s, self._undisturbed_since_s)
            self.longest_asked_s = max(self.longest_asked_s, passed_s)
            if passed_s > within_s:
                seen = f"asked for and not served for {passed_s:.1f} s; bound {within_s:.1f} s"
                self.report(Invariant.SERVED_WHEN_ASKED, bundle, seen)

    def cut(self, wholes: Iterable[BundleId], parts: Iterable[BundleId]) -> None:
        """Expect the results of splits and merges, if the former bundles were expected."""
        parts = list(parts)
        gone = set(wholes) - set(parts)
        for known in (self._wanted, self._erased):
            former = [whole for whole in gone if whole in known]
            known.update(p for p in parts if any(share_positions(p, whole) for whole in former))

    def erased(self, bundles: Iterable[BundleId]) -> None:
        """Stop expecting bundles until they are looked up or ordered: their orders were erased."""
        self._erased.update(bundles)

    def ordered(self, bundles: Iterable[BundleId]) -> None:
        """Expect these bundles again: a leader ordered them."""
        self._erased.difference_update(bundles)

    def restored(self) -> None:
        """Expect only looked-up bundles: restored orders may not contain the others."""
        self._wanted.clear()

    def forget(self, bundles: Iterable[BundleId]) -> None:
        """Stop expecting bundles until they are served again: their namespace was deleted."""
        self._wanted.difference_update(bundles)


def any_broker_fit(agents: Iterable[Agent], nodes: Container[str]) -> bool:
    return any(
        is_healthy(agent) and znodes.draining(agent.host.name) not in nodes for agent in agents
    )
