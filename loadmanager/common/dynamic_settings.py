"""Settings changed for the whole cluster while it runs, where Pulsar keeps its own.

They are texts by name in one znode, changed by compare and set. `DynamicSettings.subscribe`
reports changes on every sidecar, within the time a watch takes.
"""

import json
from collections.abc import Callable, Mapping, Sequence

import structlog
from pydantic import SecretStr

from loadmanager.common.context import Context
from loadmanager.common.documents import Documents, as_unavailable
from loadmanager.config import Config
from loadmanager.config.describe import describe
from loadmanager.config.dynamic import NotDynamic, dynamic_names, override, with_overrides
from loadmanager.config.errors import ConfigError
from loadmanager.core import znodes
from loadmanager.core.errors import MalformedContent
from loadmanager.core.fields import parse_fields, to_json
from loadmanager.ports.administration import Unfit
from loadmanager.ports.coordination import Node, Watch

log = structlog.get_logger()

_HIDDEN = "********"


class DynamicSettings:
    """Settings changed for the whole cluster while it runs.

    ``config`` is this sidecar's own configuration, which the settings override.
    """

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
