from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from loadmanager.core.errors import LoadManagerError
from loadmanager.core.ids import BundleId, TopicName
from loadmanager.core.load import BrokerUrls, BundleStats
from loadmanager.core.rates import Rates


class BrokerError(LoadManagerError):
    """A command to the broker failed. Base of the classes below."""


class BrokerUnreachable(BrokerError):
    """No answer in time: the broker may or may not have carried out the command."""


class BrokerRefused(BrokerError):
    """The broker refused the command, or sent an invalid answer."""


class NotTheContract(BrokerRefused):
    """The server that answers does not implement the broker contract."""


class StaleAgent(BrokerRefused):
    """A newer agent commands this broker; this agent must stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerState:
    """What a broker answers to a lease renewal.

    ``incarnation`` is drawn at each start of the broker process: a changed one
    means that it restarted and serves nothing of what it was ordered before.
    ``clock_s`` is the broker's own monotonic clock, which belongs to the incarnation: the
    next process may count from another moment. ``serving`` maps each bundle it
    serves to the fencing token it was loaded with.
    """

    incarnation: str
    clock_s: float
    serving: Mapping[BundleId, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStats:
    """The statistics of a broker over its last window, for each bundle it serves.

    ``process_id`` is the broker's on the same host, for probes that measure one
    process tree; None when the broker does not report it. ``left_out`` names the figures of
    bundles that are outside their bounds, which count as 0. ``urls`` is where clients reach it,
    None when it does not report it.
    """

    window_s: float
    bundles: Mapping[BundleId, BundleStats]
    version: str = ""
    process_id: int | None = None
    left_out: tuple[str, ...] = ()
    urls: BrokerUrls | None = None


class BrokerControl(Protocol):
    """The broker beside this sidecar, as its agent commands it.

    Every command carries ``agent_epoch``, which grows with each session of the agent
    (it is the czxid of its registration): a broker obeys the highest it has seen.
    All methods raise `BrokerUnreachable`, `BrokerRefused` or `StaleAgent`.
    """

    async def health(self, timeout_s: float) -> None:
        """Return if the broker reports within ``timeout_s`` that it is healthy."""

    async def stats(self) -> BrokerStats: ...

    async def topics(self, bundle: BundleId) -> Mapping[TopicName, Rates]:
        """Return the topics that the broker has open in ``bundle``, idle ones too.

        The bundle can be cut between them. Of very many, a broker may report only the
        busiest. A bundle that is not served is refused.
        """

    async def renew_lease(
        self, *, agent_epoch: int, until_s: float | None, incarnation: str | None
    ) -> BrokerState:
        """Let the broker serve until its own clock shows ``until_s``, then stop by itself.

        ``incarnation`` names the process whose clock ``until_s`` was computed on. Any
        other extends nothing, and reports its state: the same reading of its clock could be
        far in the future. ``until_s`` of None asks for the state without extending the
        lease. A renewal that was under way for long cannot extend the lease beyond what
        was meant, because the time is the broker's own.
        """

    async def load(self, bundle: BundleId, *, agent_epoch: int, fencing_token: int) -> None:
        """Begin to serve ``bundle``. Loading what is loaded already with this token is fine.

        So is loading again with the same token what a lost lease ended. A token that an
        unload ended, or one below any that came before, is refused.
        """

    async def unload(
        self, bundle: BundleId, *, agent_epoch: int, fencing_token: int, next_owner_url: str = ""
    ) -> None:
        """Stop serving ``bundle`` under this token or a lower one, now or later.

        On return no request of it is being served, and a load with such a token that is
        still under way will be refused. Unloading what is not loaded is fine; what is
        loaded with a higher token is left alone and the unload refused.

        ``next_owner_url`` is where Pulsar's clients find the next owner, "" if that is not
        known: the broker may send them there, and the next owner may not serve yet.
        """

    async def close(self) -> None: ...
