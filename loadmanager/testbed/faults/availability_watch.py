"""Watching bundles without a broker: for how long, and whether a fault accounts for it.

The clock of the bound runs for a bundle that was served before and whose namespace
exists, while no broker serves it and nothing was disturbed: from the last fault on, as
long as the service has a majority and one broker is fit. A broker is fit if it obeys,
no drain mark stands, and its sidecar is registered, connected and not asked to stop.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Final

from loadmanager.config import Config
from loadmanager.core import znodes
from loadmanager.core.ids import BundleId
from loadmanager.testbed.checker.serving import share_positions
from loadmanager.testbed.faults.agent import SESSION_S, Agent
from loadmanager.testbed.faults.host import CONTROL_TIMEOUT_S, Host
from loadmanager.testbed.faults.leader_watch import is_healthy, led_within_s
from loadmanager.testbed.faults.violation import Invariant, Report

LOOK_EVERY_S: Final = 0.5

LAGS_TO_A_NEW_OWNER: Final = 4
"""A leader whose replies are late reads absent brokers and orders, and writes two orders."""

_PLACED_S: Final = 10.0
"""For a client's next question, the decision, the lock and the load, with a failure in each."""

PATIENCE_S: Final = 5.0
"""After so long without an answer a client gives a sidecar up."""
ASK_AGAIN_S: Final = 2.0
"""How long it waits then before it asks any sidecar again."""
ASKED_FOR_S: Final = PATIENCE_S + ASK_AGAIN_S
"""How long a question to a healthy sidecar counts. A client asks again by then, but perhaps a
frozen sidecar, and while none that is well is asked no leader knows what is wanted."""

_RETRIES_S: Final = 4.0
"""A lost election, a lost order, a refused lock and a failed load, each tried again once."""


def served_again_within_s(config: Config) -> float:
    """Return the bound: what the slowest way to a new owner takes after the last fault.

    The session of the dead or cut off owner, or leader, has to expire: a whole timeout.
    Then comes one of two. A fault may hit the next owner as it is being chosen: its broker is
    given up when its lease has run out, and its sidecar registers again. Or many are missed
    together, and waited for; by then, the broker that gets the bundles has been seen to be well for
    longer than the first would take. The leader notices within a tick.
    """
    lease_s = config.ownership.self_fence_fraction * SESSION_S
    renewal_s = config.ownership.heartbeat_fraction * SESSION_S + CONTROL_TIMEOUT_S
    next_s = max(lease_s + renewal_s, config.leader.return_wait_s)
    return SESSION_S + next_s + config.leader.tick_interval_s + _RETRIES_S


def served_when_asked_within_s(config: Config) -> float:
    """Return the bound for what a client asks for: there is a leader by then, and it decides."""
    return led_within_s(config) + _PLACED_S


@dataclass(frozen=True, slots=True)
class _Asked:
    """From when on a bundle is asked for, less the time in which it was not, and until when."""

    since_s: float
    until_s: float


@dataclass(slots=True)
class AvailabilityWatch:
    """Looks every `LOOK_EVERY_S`, which is how exact its times are."""

    within_s: float
    asked_within_s: float
    report: Report
    longest_s: float = 0.0
    """The longest that the clock of the bound ran for any bundle that was served before."""
    longest_asked_s: float = 0.0
    """The longest that it ran for one that was only asked for."""
    _undisturbed_since_s: float = 0.0
    _wanted: set[BundleId] = field(default_factory=set)
    _asked: dict[BundleId, _Asked] = field(default_factory=dict)
    _erased: set[BundleId] = field(default_factory=set)
    _missing_since_s: dict[BundleId, float] = field(default_factory=dict)

    def disturbed(self, at_s: float) -> None:
        """Begin to count from zero: something has just been broken."""
        self._undisturbed_since_s = at_s

    def look(
        self,
        bundles: Iterable[BundleId],
        hosts: Iterable[Host],
        fit: bool,
        at_s: float,
        lag_s: float = 0.0,
    ) -> None:
        """Compare what should be served with what is; replies come late by up to ``lag_s``."""
        if not fit:
            self.disturbed(at_s)
        served = {bundle for host in hosts for bundle in host.serving}
        standing = list(bundles)
        # What a namespace left that is gone, and is not yet let go, is not wanted any more.
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
        """Expect a bundle that a client asks a healthy sidecar for, for as long as it does."""
        since_s = at_s
        if (former := self._asked.get(bundle)) is not None:
            begun_s = max(former.since_s, self._undisturbed_since_s)
            since_s = begun_s + max(at_s - max(former.until_s, begun_s), 0.0)
        self._asked[bundle] = _Asked(since_s, at_s + ASKED_FOR_S)

    def answered(self, bundle: BundleId) -> None:
        """Expect it no more for the clients that asked: their lookups were answered."""
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
        """Expect the parts of what was cut, if that was expected."""
        parts = list(parts)
        gone = set(wholes) - set(parts)
        for known in (self._wanted, self._erased):
            former = [whole for whole in gone if whole in known]
            known.update(p for p in parts if any(share_positions(p, whole) for whole in former))

    def erased(self, bundles: Iterable[BundleId]) -> None:
        """Expect these no more until they are asked for or ordered: their orders are no more."""
        self._erased.update(bundles)

    def ordered(self, bundles: Iterable[BundleId]) -> None:
        """Take note that a leader knows of these."""
        self._erased.difference_update(bundles)

    def restored(self) -> None:
        """Expect what is asked for, and nothing else: older orders may not know the rest."""
        self._wanted.clear()

    def forget(self, bundles: Iterable[BundleId]) -> None:
        """Expect these no more, until they are served again: their namespace is gone."""
        self._wanted.difference_update(bundles)


def any_broker_fit(agents: Iterable[Agent], nodes: Container[str]) -> bool:
    """Return whether one broker could take a bundle now."""
    return any(
        is_healthy(agent) and znodes.draining(agent.host.name) not in nodes for agent in agents
    )
