"""Settings changed for the whole cluster while it runs, where Pulsar keeps its own.

They are texts by name in one znode, changed by compare and set. Every sidecar applies changes
within the time a watch takes.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from loadmanager.common.context import Context
from loadmanager.common.watching import readable
from loadmanager.config import Config
from loadmanager.config.dynamic import override
from loadmanager.config.strategies import planner_of, shadows_of
from loadmanager.core import znodes
from loadmanager.core.fields import parse_fields
from loadmanager.core.planner import Planner
from loadmanager.ports.coordination import Node, Watch
from loadmanager.ports.host import Clock
from loadmanager.telemetry.metrics import Metrics

log = structlog.get_logger()

_NAP_S: Final = 2.0
_NOTHING_S: Final = 1e-6
_LOST_AFTER_S: Final = 15.0
_LOST_AFTER_ROUNDS: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskBounds:
    """Tasks in flight with one broker, and when an order that is not carried out counts as lost."""

    most_per_broker: int
    lost_after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeValues:
    """The configuration in force, and what is made of it; ``shadows`` decide beside the planner."""

    config: Config
    planner: Planner
    shadows: Mapping[str, Planner]

    @property
    def task_bounds(self) -> TaskBounds:
        return TaskBounds(
            most_per_broker=max(self.planner.settings.in_flight_per_broker, 1),
            lost_after_s=min(
                _LOST_AFTER_S, _LOST_AFTER_ROUNDS * self.config.leader.round_interval_s
            ),
        )


async def sleep_interruptibly(
    clock: Clock, interval_s: Callable[[], float], nap: Callable[[float], Awaitable[object]]
) -> None:
    """Return when ``interval_s`` as it is by then has passed, or when ``nap`` returns True."""
    begun_s = clock.monotonic_s()
    while (left_s := begun_s + interval_s() - clock.monotonic_s()) > _NOTHING_S:
        if await nap(min(left_s, _NAP_S)):
            return


class RuntimeSettings:
    """A sidecar's own configuration under the cluster's settings: ``now`` is what is in force.

    Raises `ConfigError`: a strategy or one of its settings does not exist.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._faults: Mapping[str, str] = {}
        self._followers: list[Callable[[Config], None]] = []
        self._last = config
        self._watch: Watch | None = None
        self.now = runtime_values(config)

    def open(self, context: Context) -> None:
        read = partial(self._read, context.metrics)
        self._watch = context.coordination.watch(znodes.CONFIGURATION, read)

    def close(self) -> None:
        if self._watch:
            self._watch.close()

    def follow(self, follower: Callable[[Config], None]) -> None:
        self._followers.append(follower)

    def changed(self, values: Mapping[str, str]) -> None:
        result = override(self._config, values)
        for name, why in result.faults.items():
            if self._faults.get(name) != why:
                log.warning("configuration.key.refused", name=name, error=why)
        self._faults = result.faults
        if (
            result.config == self._last
            and result.config.planner.model_fields_set == self._last.planner.model_fields_set
        ):
            return
        self._last = result.config
        self.now = runtime_values(result.config)
        for follower in self._followers:
            follower(result.config)
        log.info("configuration.values.applied", names=sorted(values.keys() - result.faults.keys()))

    def _read(self, metrics: Metrics, node: Node | None) -> None:
        # Else the former settings stay: they were not removed.
        with readable(znodes.CONFIGURATION, metrics, "configuration"):
            self.changed(parse_settings(node.data if node else None))


def runtime_values(config: Config) -> RuntimeValues:
    parts = (config.shedding, config.placement, config.planner, config.leader)
    return RuntimeValues(config=config, planner=planner_of(*parts), shadows=shadows_of(*parts))


def parse_settings(data: bytes | None) -> dict[str, str]:
    if not data:
        return {}
    fields = parse_fields(znodes.CONFIGURATION, data)
    return {name: fields.text(name) for name in fields.names()}
