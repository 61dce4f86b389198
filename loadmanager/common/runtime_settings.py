"""Settings changed for the whole cluster while it runs, where Pulsar keeps its own.

They are texts by name in one znode, changed by compare and set. `DynamicSettings.subscribe`
reports changes on every sidecar, within the time a watch takes.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from pydantic import SecretStr

from loadmanager.common.context import Context
from loadmanager.common.documents import Documents, as_unavailable
from loadmanager.config import Config
from loadmanager.config.describe import describe
from loadmanager.config.dynamic import NotDynamic, dynamic_names, override, with_overrides
from loadmanager.config.forms import ConfigError
from loadmanager.config.strategies import planner_of, shadows_of
from loadmanager.core import znodes
from loadmanager.core.errors import MalformedContent
from loadmanager.core.fields import parse_fields, to_json
from loadmanager.core.planner import Planner
from loadmanager.ports.administration import Unfit
from loadmanager.ports.coordination import Node, Watch
from loadmanager.ports.host import Clock

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
        self.now = runtime_values(config)

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


def runtime_values(config: Config) -> RuntimeValues:
    parts = (config.shedding, config.placement, config.planner, config.leader)
    return RuntimeValues(config=config, planner=planner_of(*parts), shadows=shadows_of(*parts))


_HIDDEN = "********"


class DynamicSettings:
    """Settings changed for the whole cluster while it runs, over this sidecar's ``config``."""

    def __init__(self, context: Context, config: Config) -> None:
        self._coordination = context.coordination
        self._documents = Documents(context.coordination)
        self._metrics = context.metrics
        self._config = config
        self._watch: Watch | None = None
        self._subscribers: list[Callable[[Mapping[str, str]], None]] = []

    def subscribe(self, callback: Callable[[Mapping[str, str]], None]) -> None:
        self._subscribers.append(callback)

    def open(self) -> None:
        self._watch = self._coordination.watch(znodes.CONFIGURATION, self._changed)

    def close(self) -> None:
        if self._watch:
            self._watch.close()

    def names(self) -> Sequence[str]:
        return dynamic_names()

    async def values(self) -> Mapping[str, str]:
        data = await self._documents.read(znodes.CONFIGURATION)
        with as_unavailable(znodes.CONFIGURATION, "read"):
            return _parsed(data)

    async def effective(self) -> Mapping[str, str]:
        """Return this sidecar's whole configuration with these settings, without secrets."""
        config = override(self._config, await self.values()).config
        return {
            f"{known.section}.{known.key}": _text(
                getattr(getattr(config, known.section), known.key)
            )
            for known in describe()
        }

    async def put(self, name: str, value: str) -> None:
        """Raises `Unfit`: the name cannot be set, or the value is invalid."""
        self._check_name(name)

        def edit(data: bytes | None) -> bytes:
            after = {**_parsed(data), name: value}
            fault = override(self._config, after).faults.get(name)
            if fault is not None:
                raise Unfit(f"Invalid dynamic-config value: {fault}")
            return to_json(dict(sorted(after.items())))

        await self._documents.change(znodes.CONFIGURATION, edit)
        log.info("configuration.key.set", name=name)

    async def remove(self, name: str) -> None:
        """It is ignored if it is not set. Raises `Unfit`: the name cannot be set."""

        def edit(data: bytes | None) -> bytes | None:
            before = _parsed(data)
            if name not in before:
                self._check_name(name)
                return data
            return to_json({one: text for one, text in before.items() if one != name})

        await self._documents.change(znodes.CONFIGURATION, edit)
        log.info("configuration.key.removed", name=name)

    def _check_name(self, name: str) -> None:
        try:
            with_overrides(self._config, {name: ""})
        except NotDynamic as error:
            raise Unfit(f"Cannot update non-dynamic configuration: {error}") from error
        except ConfigError:
            return  # The name is one; that no text is no value for it does not matter here.

    def _changed(self, node: Node | None) -> None:
        try:
            values = _parsed(node.data if node else None)
        except MalformedContent as error:
            # The former settings stay: they were not removed.
            log.warning("znode.content.refused", path=znodes.CONFIGURATION, error=str(error))
            self._metrics.malformed("configuration")
            return
        for callback in self._subscribers:
            callback(values)


def _parsed(data: bytes | None) -> dict[str, str]:
    if not data:
        return {}
    fields = parse_fields(znodes.CONFIGURATION, data)
    return {name: fields.text(name) for name in fields.names()}


def _text(value: object) -> str:
    if isinstance(value, SecretStr):
        return _HIDDEN if value.get_secret_value() else ""
    return value if isinstance(value, str) else json.dumps(value, default=str)
