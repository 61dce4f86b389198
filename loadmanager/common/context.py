"""Whether the work that a process is there for still begins; what hangs is to be restarted."""

import asyncio
import math
import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

import structlog

from loadmanager.common.cluster_conditions import TopicHash
from loadmanager.common.cluster_state import ClusterState
from loadmanager.config import Config
from loadmanager.config.model import own_url
from loadmanager.core.hosts import unreachable
from loadmanager.core.ids import BrokerId
from loadmanager.core.load import BrokerUrls
from loadmanager.core.seed import Seed
from loadmanager.core.wire.records import LeaderRecord, LockRecord, encode_leader, encode_lock
from loadmanager.ports.broker import BrokerControl
from loadmanager.ports.coordination import TooLarge
from loadmanager.ports.history import HistorySink, NoHistory
from loadmanager.ports.host import Clock, Computing, ComputingInline
from loadmanager.ports.session import Coordination
from loadmanager.telemetry.metrics import Metrics

log = structlog.get_logger()


def raise_if_cancelled() -> None:
    """Raise a cancellation that a `TaskGroup` with a task that failed did not."""
    task = asyncio.current_task()
    if task and task.cancelling():
        raise asyncio.CancelledError


def leaves(group: BaseExceptionGroup[Exception]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def first_leaf(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first


LEAST_S: Final = 30.0
"""No work counts as overdue before: answers of ZooKeeper and of brokers may take that long."""


class Liveness:
    def __init__(self, clock_s: Callable[[], float] = monotonic) -> None:
        self._clock_s = clock_s
        self._begun: dict[str, tuple[float, Callable[[], float]]] = {}

    def begun(self, work: str, interval_s: Callable[[], float]) -> None:
        """Note that ``work`` begins, and expect it again within three times its interval."""
        self._begun[work] = self._clock_s(), interval_s

    def over(self, work: str) -> None:
        self._begun.pop(work, None)

    def overdue(self) -> str:
        """Return which work has not begun in time, "" if all has. Any thread may ask."""
        now_s = self._clock_s()
        return "; ".join(
            f"no {work} has begun for {now_s - since_s:.0f} s"
            for work, (since_s, interval_s) in tuple(self._begun.items())
            if now_s - since_s > max(3 * interval_s(), LEAST_S)
        )


LOG_EVERY_S: Final = 60.0
REST_S: Final = 10.0
"""How long to wait before an oversized write is tried again."""


class OversizedWrites:
    """The oversized writes of one process; all else continues."""

    def __init__(self, clock: Clock, metrics: Metrics) -> None:
        self._clock = clock
        self._metrics = metrics
        self._log_again_s: dict[str, float] = {}

    def refused(self, kind: str, subject: str, error: TooLarge) -> None:
        """Count a write, and log it: at most once a minute for each kind."""
        self._metrics.oversized_writes.labels(kind).inc()
        now_s = self._clock.monotonic_s()
        if now_s >= self._log_again_s.get(kind, -math.inf):
            self._log_again_s[kind] = now_s + LOG_EVERY_S
            log.error(
                "zookeeper.write.too_large",
                kind=kind,
                subject=subject,
                size_bytes=error.size_bytes,
                limit_bytes=error.limit_bytes,
            )


class UnexpectedErrors:
    """The unexpected errors of one process by place; tests fail by its ``followers``."""

    def __init__(self, clock: Clock, metrics: Metrics) -> None:
        self._clock = clock
        self._metrics = metrics
        self._logged_at_s: dict[str, float] = {}
        self._since: dict[str, int] = {}
        self.followers: list[Callable[[str, BaseException], None]] = []

    def caught(self, place: str, error: BaseException) -> None:
        """Count an error, and log it with its trace: at most once a minute for each place."""
        self._metrics.unexpected_errors.labels(place).inc()
        now_s = self._clock.monotonic_s()
        last_s = self._logged_at_s.get(place)
        if last_s is None or now_s - last_s >= LOG_EVERY_S:
            self._logged_at_s[place] = now_s
            log.error(
                "error.unexpected",
                place=place,
                error=f"{type(error).__name__}: {error}",
                not_logged=self._since.pop(place, 0),
                exc_info=error,
            )
        else:
            self._since[place] = self._since.get(place, 0) + 1
        for follower in self.followers:
            follower(place, error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The broker beside this sidecar, and this run of it, by a generated ``instance``."""

    broker: BrokerId
    urls: BrokerUrls
    sidecar_url: str
    instance: str
    started_at_ms: int
    version: str
    host: str = ""
    process_id: int = 0

    def lock_content(self, epoch: int) -> bytes:
        return encode_lock(LockRecord(urls=self.urls, broker=self.broker, epoch=epoch))

    def leader_content(self, epoch: int) -> bytes:
        return encode_leader(
            LeaderRecord(
                broker=self.broker,
                service_url=self.urls.http_url,
                sidecar_url=self.sidecar_url,
                instance=self.instance,
                epoch=epoch,
            )
        )


def make_identity(config: Config, port: int, clock: Clock) -> Identity:
    return Identity(
        broker=config.broker.id,
        urls=BrokerUrls(
            http_url=config.broker.http_url,
            http_url_tls=config.broker.http_url_tls,
            broker_url=config.broker.broker_url,
            broker_url_tls=config.broker.broker_url_tls,
        ),
        sidecar_url=config.sidecar.advertised_url
        or own_url(
            config.sidecar.listen_host,
            config.broker.id,
            port,
            tls=bool(config.tls.certificate_file),
        ),
        instance=secrets.token_hex(8),
        started_at_ms=clock.wall_ms(),
        version=config.broker.version,
        host=socket.gethostname(),
        process_id=os.getpid(),
    )


@dataclass(kw_only=True, eq=False)
class Context:
    identity: Identity
    coordination: Coordination
    cluster_state: ClusterState
    broker: BrokerControl
    clock: Clock
    metrics: Metrics
    topic_hash: TopicHash = field(default_factory=TopicHash)
    history: HistorySink = field(default_factory=NoHistory)
    read_seed: Callable[[int], Awaitable[Seed]] | None = None
    """Reads the seed for an hour of the week, if there is one; raises `SeedUnreadable`."""
    computing: Computing = field(default_factory=ComputingInline)
    troubles: dict[str, str] = field(default_factory=dict)
    """Problems that readiness names besides, by what has them."""

    def __post_init__(self) -> None:
        self.liveness = Liveness(self.clock.monotonic_s)
        self.unexpected = UnexpectedErrors(self.clock, self.metrics)
        self.oversized = OversizedWrites(self.clock, self.metrics)


_RECHECK_S = 30.0
_LOG_INTERVAL_S = 60.0


class Reachability:
    """Whether clients may be sent to this sidecar, and it may lead: the others ask the leader."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._logged_at_s: float | None = None

    @property
    def why(self) -> str:
        return unreachable(self._context.identity.sidecar_url, self._context.cluster_state.brokers)

    async def run(self) -> None:
        """Log the problem when it begins, and repeatedly while it lasts, until cancelled."""
        while True:
            now_s = self._context.clock.monotonic_s()
            why = self.why
            if not why:
                if self._logged_at_s is not None:
                    log.info("sidecar.url.reachable", url=self._context.identity.sidecar_url)
                self._logged_at_s = None
            elif self._logged_at_s is None or now_s - self._logged_at_s >= _LOG_INTERVAL_S:
                self._logged_at_s = now_s
                log.error("sidecar.url.unreachable", why=why)
            await self._context.cluster_state.changes.wait(_RECHECK_S)
