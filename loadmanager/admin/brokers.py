from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final, Literal

import structlog
from pydantic import AfterValidator, ConfigDict, Field

from loadmanager.adapters.http.assign_client import TOPICS_PATH, topics_to_json
from loadmanager.adapters.http.operations import Document, Query, Reply, Resource, operation
from loadmanager.admin.topics import Topics
from loadmanager.common.cluster_state import check_cluster
from loadmanager.common.context import Context
from loadmanager.common.documents import Documents, as_unavailable
from loadmanager.common.runtime_settings import parse_settings
from loadmanager.config import Config
from loadmanager.config.describe import shown
from loadmanager.config.dynamic import NotDynamic, dynamic_names, override, with_overrides
from loadmanager.config.forms import ConfigError
from loadmanager.core import znodes
from loadmanager.core.balancing import Balancing, BalancingMode
from loadmanager.core.errors import MalformedContent
from loadmanager.core.fields import to_json
from loadmanager.core.ids import (
    BrokerId,
    BundleId,
    belongs_to_a_broker,
    namespace_of,
    parse_namespace,
)
from loadmanager.core.policies import IsolationPolicy, Policies, hosts_matching
from loadmanager.core.wire.policies import decode_isolation
from loadmanager.core.wire.records import (
    DrainMark,
    decode_balancing,
    decode_drain_mark,
    encode_balancing,
    encode_drain_mark,
)
from loadmanager.core.wire.reports import decode_loads, report_to_json
from loadmanager.ports.lookup import Conflict, Missing, Unavailable, Unfit

log = structlog.get_logger()


class Marked(Document):
    """The drain mark of a broker."""

    since_ms: int
    by: str
    reason: str
    drain: bool = True
    """Whether the broker is emptied; else it is cordoned: it takes no bundles."""


class DrainState(Document):
    """The drain status of a broker."""

    broker: str
    registered: bool
    draining: bool
    """Whether the broker is registered as draining: its sidecar has seen the mark, or is about to
    stop."""
    bundles_left: int
    marked: Marked | None
    """The drain mark; null if the broker has none."""
    stay: dict[str, int] = Field(default_factory=dict)
    """How many bundles will stay, by the reason, where `explain` does not say it: with `attach`."""


_BROKER: Final = "/admin/v2/loadmanager/brokers/{broker}"
_PATH: Final = f"{_BROKER}/drain"
_CORDON: Final = f"{_BROKER}/cordon"
_LONGEST: Final = 500
_UNKNOWN: Final = Reply(404, "The broker is not registered.")


Kept = Annotated[str, AfterValidator(lambda text: text[:_LONGEST])]


class AuthorQuery(Query):
    """The author of a request and the reason, which later queries return."""

    by: Kept = ""
    """The author of the request; up to 500 characters are kept."""
    reason: Kept = ""
    """The reason; up to 500 characters are kept."""


class Drains(Resource, tag="draining"):
    """Marks brokers that are to be drained; every sidecar can.

    ``stays`` says which bundles never move. All methods raise `Unavailable` while the marks
    cannot be read or written.
    """

    def __init__(
        self, context: Context, stays: Callable[[BundleId], bool] = belongs_to_a_broker
    ) -> None:
        self._stays = stays
        self._context = context
        self._documents = Documents(context.coordination)

    @operation(
        f"PUT {_PATH}",
        Reply(204, "The broker is marked; the leader moves its bundles, a few at a time."),
        _UNKNOWN,
        query=AuthorQuery,
    )
    async def mark(self, broker: BrokerId, *, by: str, reason: str) -> None:
        """Drain a broker, and keep it empty.

        If the broker drains already, that mark is kept.
        """
        await self.put(broker, by=by, reason=reason, drain=True)

    @operation(
        f"PUT {_CORDON}",
        Reply(204, "The broker is marked: it takes no bundles, and is not emptied."),
        _UNKNOWN,
        Reply(409, "No other broker would take bundles."),
        query=AuthorQuery,
    )
    async def cordon(self, broker: BrokerId, *, by: str, reason: str) -> None:
        """Let a broker take no bundles; a drain of it ends, and what is left stays.

        If the broker is cordoned already, that mark is kept.
        """
        await self.put(broker, by=by, reason=reason, drain=False)

    async def put(self, broker: BrokerId, *, by: str, reason: str, drain: bool) -> None:
        context = self._context
        brokers = context.cluster_state.brokers
        if broker not in brokers:
            raise Missing(f"{broker}: no such broker is registered")
        others = (known.registration.takes for name, known in brokers.items() if name != broker)
        if not drain and not any(others):
            why = f"no broker besides {broker} takes bundles"
            raise Conflict(f"{why}; add one, or uncordon another one before")
        since_ms = context.clock.wall_ms()
        mark = DrainMark(since_ms=since_ms, by=by, reason=reason, drain=drain)
        path = znodes.draining(broker)

        def edit(data: bytes | None) -> bytes:
            stands = DrainMark()
            with suppress(MalformedContent):
                stands = decode_drain_mark(path, data) if data else stands
            return encode_drain_mark(mark) if data is None or stands.drain is not drain else data

        await self._documents.change(path, edit)
        log.info("broker.drain.requested", broker=broker, by=by, reason=reason, drain=drain)

    @operation(f"DELETE {_CORDON}", f"DELETE {_PATH}", Reply(204, "The broker has no mark."))
    async def unmark(self, broker: BrokerId) -> None:
        """Let a broker take bundles again, whether it drains or is cordoned.

        If the broker has no mark, nothing is changed.
        """
        await self._documents.change(znodes.draining(broker), lambda _: None)
        log.info("broker.drain.cancelled", broker=broker)

    @operation(
        f"GET {_BROKER}",
        Reply(200, "The drain status.", DrainState),
        Reply(404, "The broker is neither registered nor marked."),
    )
    async def status(self, broker: BrokerId) -> DrainState:
        """Get the number of bundles that are left on a broker, and its drain mark."""
        mark, state = await self._mark(broker), self._context.cluster_state
        known = state.brokers.get(broker)
        if known is None and mark is None:
            raise Missing(f"{broker}: no such broker is registered or marked")
        await state.lists.require_read(broker)
        owners = state.owners.items()
        left = (b for b, at in owners if at.broker == broker and not self._stays(b))
        return DrainState(
            broker=broker,
            registered=known is not None,
            draining=known is not None and known.registration.draining,
            marked=mark and Marked.model_validate(mark),
            bundles_left=sum(1 for _ in left),
        )

    async def _mark(self, broker: BrokerId) -> DrainMark | None:
        path = znodes.draining(broker)
        data = await self._documents.read(path)
        if data is None:
            return None
        try:
            return decode_drain_mark(path, data)
        except MalformedContent as error:
            log.warning("znode.content.refused", path=path, error=str(error))
            self._context.metrics.malformed("draining")
            return DrainMark()


_BALANCING: Final = "/admin/v2/loadmanager/balancing"
_DONE: Final = (Reply(204, "The mode is set, for this and every later leader."),)


class BalancingState(Document):
    """The balancing mode."""

    mode: BalancingMode
    since_ms: int
    """The time when the mode was set, in milliseconds since 1970; 0 if it never was."""
    by: str
    reason: str


class BalancingModes(Resource, tag="balancing"):
    def __init__(self, context: Context) -> None:
        self._documents = Documents(context.coordination)
        self._clock = context.clock

    @operation(
        f"GET {_BALANCING}", Reply(200, "The mode, with its author and reason.", BalancingState)
    )
    async def state(self) -> Balancing:
        """Get the balancing mode."""
        data = await self._documents.read(znodes.BALANCING)
        with as_unavailable(znodes.BALANCING, "read"):
            return decode_balancing(znodes.BALANCING, data) if data else Balancing()

    @operation(f"PUT {_BALANCING}/pause", *_DONE, query=AuthorQuery)
    async def pause(self, *, by: str, reason: str) -> None:
        """Pause the rounds of this and every later leader, which then move and split nothing.

        Bundles without an owner are still placed, draining brokers are still emptied, and requests
        to unload or split are still carried out.
        """
        await self.put(BalancingMode.PAUSED, by=by, reason=reason)

    @operation(f"PUT {_BALANCING}/observe", *_DONE, query=AuthorQuery)
    async def observe(self, *, by: str, reason: str) -> None:
        """Have rounds decide and record their decisions, but order no moves.

        The leader carries out the same as while it is paused.
        """
        await self.put(BalancingMode.OBSERVING, by=by, reason=reason)

    @operation(f"PUT {_BALANCING}/resume", *_DONE, query=AuthorQuery)
    async def resume(self, *, by: str, reason: str) -> None:
        """Let rounds move bundles again."""
        await self.put(BalancingMode.ACTIVE, by=by, reason=reason)

    async def put(self, mode: BalancingMode, *, by: str, reason: str) -> None:
        """Set the mode for this and every later leader; an equal current mode is kept."""
        wanted = Balancing(mode=mode, since_ms=self._clock.wall_ms(), by=by, reason=reason)

        def edit(data: bytes | None) -> bytes | None:
            stands = None
            with suppress(MalformedContent):
                stands = decode_balancing(znodes.BALANCING, data).mode if data else None
            return data if stands is mode else encode_balancing(wanted)

        await self._documents.change(znodes.BALANCING, edit)
        log.info("balancing.mode.set", mode=mode.value, by=by, reason=reason)


_STATS: Final = "broker stats"
_BROKERS: Final = Reply(200, "The ids of the brokers, `host:port`, sorted.", list[str])
_NO_CLUSTER: Final = Reply(404, "The cluster is another one.")


class OwnedBundle(Document):
    """Why a broker owns a bundle, as Pulsar has it."""

    model_config = ConfigDict(alias_generator=None)

    assignment: Literal["shared", "primary", "secondary"] = Field(
        serialization_alias="broker_assignment"
    )
    """Whether the broker is a primary or a secondary one of the isolation policy that governs the
    bundle; `shared` without such a policy."""
    is_controlled: bool
    """Whether an isolation policy governs the bundle."""
    is_active: bool


class StatsQuery(Query):
    """Which topics are listed."""

    namespace: str = ""
    """Lists only topics of this `tenant/namespace`. Pulsar has no such parameter."""


class Brokers(Resource, tag="brokers"):
    def __init__(self, context: Context, cluster: str, topics: Topics) -> None:
        self._cluster_state = context.cluster_state
        self._me = context.identity.broker
        self._cluster = cluster
        self._documents = Documents(context.coordination)
        self._topics = topics

    @operation("GET /admin/v2/brokers", _BROKERS)
    @operation("GET /admin/v2/brokers/{cluster}", _BROKERS, _NO_CLUSTER)
    async def registered(self, cluster: str | None = None) -> Sequence[BrokerId]:
        """List the registered brokers."""
        if cluster is not None:
            check_cluster(cluster, self._cluster)
        return sorted(self._cluster_state.brokers)

    @operation(
        "GET /admin/v2/brokers/{cluster}/{broker}/ownedNamespaces",
        Reply(200, "The reason of ownership, by bundle.", dict[str, OwnedBundle]),
        Reply(404, "The cluster is another one, or the broker is not registered."),
    )
    async def owned(self, cluster: str, broker: BrokerId) -> Mapping[BundleId, OwnedBundle]:
        """List the bundles that a broker owns."""
        check_cluster(cluster, self._cluster)
        if broker not in self._cluster_state.brokers:
            raise Missing(f"{broker}: no such broker is registered")
        path = znodes.isolation_policies(self._cluster)
        data = await self._documents.read(path)
        with as_unavailable(path, "read"):
            policies = Policies(isolation=decode_isolation(path, data) if data else {})
        await self._cluster_state.lists.require_read(broker)
        owners = self._cluster_state.owners.items()
        mine = sorted(bundle for bundle, holding in owners if holding.broker == broker)
        return {bundle: _owned(broker, policies.governing(namespace_of(bundle))) for bundle in mine}

    @operation(
        "GET /admin/v2/broker-stats/load-report",
        Reply(200, "Pulsar's `LocalBrokerData`.", dict[str, Any]),
        tag=_STATS,
    )
    async def load_report(self) -> Mapping[str, Any]:
        """Get the last load report of this sidecar's broker."""
        known = self._cluster_state.brokers.get(self._me)
        path = znodes.loads(self._me)
        data = await self._documents.read(path) if known else None
        if known is None or data is None:
            raise Unavailable(f"broker {self._me} is not registered now")
        with as_unavailable(path, "read"):
            return report_to_json(decode_loads(path, data, known.registration))

    @operation(
        f"GET {TOPICS_PATH}",
        Reply(200, "The rates, by namespace, bundle range, domain and topic.", dict[str, Any]),
        Reply(412, "The name of the namespace is not valid."),
        tag=_STATS,
    )
    async def topics(self, query: StatsQuery) -> Mapping[str, Any]:
        """List the open topics of this sidecar's broker, with their rates.

        A broker with very many topics may report only the busiest ones.
        """
        namespace = parse_namespace(query.namespace) if query.namespace else None
        return topics_to_json(await self._topics.own(namespace))


def _owned(broker: BrokerId, policy: IsolationPolicy | None) -> OwnedBundle:
    if policy is None:
        return OwnedBundle(assignment="shared", is_controlled=False, is_active=True)
    is_primary = hosts_matching(policy.primary, (broker,)).any()
    assignment: Literal["primary", "secondary"] = "primary" if is_primary else "secondary"
    return OwnedBundle(assignment=assignment, is_controlled=True, is_active=True)


_CONFIGURATION: Final = "/admin/v2/brokers/configuration"
_TEXTS: Final = dict[str, str]


class Configuration(Resource, tag="configuration"):
    """The cluster's settings over this sidecar's ``config``.

    ``internal`` has the addresses of ZooKeeper for `internal-configuration`.
    """

    def __init__(self, context: Context, config: Config, internal: Mapping[str, str]) -> None:
        self._documents = Documents(context.coordination)
        self._config = config
        self._internal = dict(internal)

    @operation(
        f"GET {_CONFIGURATION}",
        Reply(200, "The load manager's names of the settings, then Pulsar's.", list[str]),
    )
    async def names(self) -> Sequence[str]:
        """List the settings that can be changed while the sidecars run."""
        return dynamic_names()

    @operation(
        f"GET {_CONFIGURATION}/values", Reply(200, "The values as strings, by name.", _TEXTS)
    )
    async def values(self) -> Mapping[str, str]:
        """Get the settings that are set for the whole cluster."""
        data = await self._documents.read(znodes.CONFIGURATION)
        with as_unavailable(znodes.CONFIGURATION, "read"):
            return parse_settings(data)

    @operation(
        f"GET {_CONFIGURATION}/runtime",
        Reply(200, "The values as strings, by `section.key`; secrets are hidden.", _TEXTS),
    )
    async def runtime(self) -> Mapping[str, str]:
        """Get the configuration in force: this sidecar's own, with what is set for the cluster."""
        return shown(override(self._config, await self.values()).config)

    @operation(
        "GET /admin/v2/brokers/internal-configuration",
        Reply(200, "The addresses, by Pulsar's names of the settings.", _TEXTS),
    )
    async def internal(self) -> Mapping[str, str]:
        """Get the addresses of the cluster's metadata store."""
        return self._internal

    @operation(
        f"POST {_CONFIGURATION}/{{key}}/{{value}}",
        Reply(204, "The value is set; every sidecar applies it within seconds."),
        Reply(409, "Other clients kept changing the settings."),
        Reply(
            412, "The setting does not exist or is not dynamic, or the value is not valid for it."
        ),
    )
    async def put(self, key: str, value: str) -> None:
        """Set a value for the whole cluster.

        The value is checked against this sidecar's configuration and all values that are set.
        """
        self._check_name(key)

        def edit(data: bytes | None) -> bytes:
            after = {**parse_settings(data), key: value}
            fault = override(self._config, after).faults.get(key)
            if fault is not None:
                raise Unfit(f"Invalid dynamic-config value: {fault}")
            return to_json(dict(sorted(after.items())))

        await self._documents.change(znodes.CONFIGURATION, edit)
        log.info("configuration.key.set", name=key)

    @operation(
        f"DELETE {_CONFIGURATION}/{{key}}",
        Reply(204, "The setting has no value for the whole cluster now."),
        Reply(409, "Other clients kept changing the settings."),
        Reply(412, "The setting does not exist or is not dynamic."),
    )
    async def remove(self, key: str) -> None:
        """Remove a value; every sidecar then uses that of its own configuration."""

        def edit(data: bytes | None) -> bytes | None:
            before = parse_settings(data)
            if key not in before:
                self._check_name(key)
                return data
            return to_json({one: text for one, text in before.items() if one != key})

        await self._documents.change(znodes.CONFIGURATION, edit)
        log.info("configuration.key.removed", name=key)

    def _check_name(self, name: str) -> None:
        try:
            with_overrides(self._config, {name: ""})
        except NotDynamic as error:
            raise Unfit(f"Cannot update non-dynamic configuration: {error}") from error
        except ConfigError:
            return  # The name is one; that no text is no value for it does not matter here.
