from dataclasses import dataclass

from loadmanager.core.errors import LoadManagerError
from loadmanager.core.lease import longest_lease_fraction


class MembershipEnded(LoadManagerError):
    """This membership has ended; the agent registers again when it can."""


class BrokerLost(MembershipEnded):
    """The broker accepted no renewal until its lease had expired: it serves nothing."""


class LeaseLapsed(MembershipEnded):
    """ZooKeeper answers too late for a lease while the session lives: others should serve."""


class Displaced(LoadManagerError):
    """Another sidecar took over this broker; this one has to stop."""


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """``fraction`` of the session timeout is leased; renewed every ``interval_fraction``.

    ``tick_s`` is the tick of the ensemble, 0 if it is unknown.
    """

    fraction: float
    interval_fraction: float
    tick_s: float = 0.0

    def safe_fraction(self, timeout_s: float) -> float:
        """Return the fraction of a session timeout that may be leased, at most ``fraction``.

        Raises `MembershipEnded`: it is so small that one lost renewal would stop the broker.
        """
        longest = longest_lease_fraction(timeout_s, self.tick_s)
        if longest * timeout_s < self.shortest_s(timeout_s):
            raise MembershipEnded(
                f"no lease is safe: the servers granted a session of {timeout_s:g} s, and "
                f"[zookeeper] tick_s is {self.tick_s:g}; expected the tickTime of the ensemble, "
                "and a session of two ticks or more"
            )
        return min(self.fraction, longest)

    def shortest_s(self, timeout_s: float) -> float:
        """Return the shortest acceptable lease: two heartbeat intervals."""
        return 2 * self.interval_fraction * timeout_s
