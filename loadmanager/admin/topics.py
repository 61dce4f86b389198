import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final, Literal
from urllib.parse import unquote

import structlog
from pydantic import Field

from loadmanager.adapters.http.assign_client import HttpAssignClient
from loadmanager.adapters.http.operations import Document, Query, Reply, Resource, operation
from loadmanager.adapters.http.routes import Role
from loadmanager.common.cluster_state import boundaries_of, bundle_in
from loadmanager.common.context import Context
from loadmanager.common.documents import Documents
from loadmanager.core import znodes
from loadmanager.core.errors import InvalidName, MalformedContent
from loadmanager.core.ids import (
    DOMAINS,
    BrokerId,
    BundleId,
    Namespace,
    TopicName,
    namespace_of,
    parse_full_topic,
    parse_topic,
)
from loadmanager.core.rates import Rates
from loadmanager.core.wire.records import decode_partitions, encode_partitions
from loadmanager.ports.broker import BrokerError
from loadmanager.ports.lookup import Conflict, LookupService, Missing, Unavailable, Unfit

log = structlog.get_logger()

_ASKED_AT_ONCE: Final = 16

TopicMode = Literal["PERSISTENT", "NON_PERSISTENT", "ALL"]
_Topics = Mapping[BundleId, Mapping[TopicName, Rates]]


class TopicsQuery(Query):
    """Which topics are listed."""

    mode: TopicMode = "PERSISTENT"
    """The domain of the topics to list. The default is that of Pulsar."""


class PositionsQuery(Query):
    """The topics whose positions are listed."""

    topics: list[str] = Field(default_factory=list)
    """The full names of topics, or their names within the namespace; by default all open topics."""


class HashPositions(Document):
    """The hash positions of the topics of a bundle."""

    namespace: str
    bundle: str
    hash_positions: dict[str, int]


class Topics(Resource, tag="topics"):
    def __init__(self, context: Context, line: HttpAssignClient) -> None:
        self._context = context
        self._line = line
        self._documents = Documents(context.coordination)

    @operation(
        "GET /admin/v2/namespaces/{tenant}/{namespace}/topics",
        Reply(200, "The full names of the topics, each partition by itself.", list[str]),
        Reply(404, "The namespace does not exist."),
        role=Role.LOOKUP,
    )
    async def topics(self, namespace: Namespace, query: TopicsQuery) -> Sequence[str]:
        """List the topics of a namespace.

        The list holds the topics that brokers have open, and every partition of partitioned ones.
        """
        boundaries = await boundaries_of(self._context.cluster_state, namespace)
        found = set(await self._partitions(namespace))
        for topics in await self._everywhere(namespace, boundaries.bundles):
            found |= {topic for inner in topics.values() for topic in inner}
        if query.mode != "ALL":
            domain = query.mode.lower().replace("_", "-")
            found = {topic for topic in found if topic.domain == domain}
        return sorted(map(str, found))

    @operation(
        "GET /admin/v2/namespaces/{tenant}/{namespace}/{bundle}/topicHashPositions",
        Reply(
            200, "The positions from 0 to 4294967295, by the full name of the topic.", HashPositions
        ),
        Reply(404, "The namespace does not exist, or has no such bundle."),
        Reply(412, "The name of a topic is not valid, or belongs to another namespace."),
    )
    async def positions(
        self, namespace: Namespace, bundle: str, query: PositionsQuery
    ) -> HashPositions:
        """List the hash positions of a bundle's topics, to choose positions for a split.

        Topics of other bundles are left out.
        """
        topics = [
            parse_topic(text)
            if "/" in text
            else parse_full_topic(f"persistent://{namespace}/{text}")
            for given in query.topics
            for text in given.split(",")
        ]
        boundaries = await boundaries_of(self._context.cluster_state, namespace)
        named = bundle_in(boundaries, bundle)
        elsewhere = [topic for topic in topics if topic.namespace != namespace]
        if elsewhere:
            raise Unfit(f"topic {elsewhere[0]} is not in namespace {namespace}")
        if not topics:
            found_at = await self._everywhere(namespace, (named,))
            topics = [topic for found in found_at for topic in found.get(named, ())]
        where = {str(topic): self._context.topic_hash.position(topic) for topic in topics}
        return HashPositions(
            namespace=namespace,
            bundle=bundle.lower(),
            hash_positions={topic: at for topic, at in where.items() if boundaries.at(at) == named},
        )

    async def own(self, namespace: Namespace | None) -> _Topics:
        me = self._context.identity.broker
        found: dict[BundleId, Mapping[TopicName, Rates]] = {}
        await self._context.cluster_state.lists.require_read(me)
        for bundle, holding in list(self._context.cluster_state.owners.items()):
            if holding.broker != me or namespace not in {None, namespace_of(bundle)}:
                continue
            try:
                found[bundle] = await self._context.broker.topics(bundle)
            except BrokerError as error:
                # The bundle was just unloaded, or the broker stopped: the topics are closed.
                log.debug("broker.topics.read_failed", bundle=bundle, error=str(error))
        return found

    async def _everywhere(self, namespace: Namespace, bundles: Iterable[BundleId]) -> list[_Topics]:
        cluster_state, me = self._context.cluster_state, self._context.identity.broker
        await cluster_state.lists.require_read()
        holdings = (cluster_state.live_owner(bundle) for bundle in bundles)
        owners = sorted({holding.broker for holding in holdings if holding})
        turns = asyncio.Semaphore(_ASKED_AT_ONCE)

        async def ask(owner: BrokerId) -> _Topics:
            if owner == me:
                return await self.own(namespace)
            known = cluster_state.brokers.get(owner)
            url = known.registration.sidecar_url if known else ""
            if not url:
                raise Unavailable(f"broker {owner} has no sidecar to ask for its topics")
            async with turns:
                return await self._line.topics(url, namespace)

        return list(await asyncio.gather(*map(ask, owners)))

    async def _partitions(self, namespace: Namespace) -> list[TopicName]:
        found = []
        for domain in DOMAINS:
            folder = f"{znodes.partitioned_topics(namespace)}/{domain}"
            for name in await self._documents.names(folder):
                path = f"{folder}/{name}"
                data = await self._documents.read(path)
                try:
                    count = decode_partitions(path, data) if data else 0
                    local = unquote(name, errors="strict")
                except (MalformedContent, UnicodeDecodeError) as error:
                    log.warning("znode.content.refused", path=path, error=str(error))
                    continue
                found += [
                    TopicName(domain, namespace, f"{local}-partition-{number}")
                    for number in range(count)
                ]
        return found


def _checked(path: str, topic: TopicName) -> str:
    """Return the path unless its last part is one that no node can have."""
    if path.rpartition("/")[2] in {".", ".."}:
        raise InvalidName("topic", str(topic), "a local name other than . and ..")
    return path


_MOST: Final = 100_000


class Partitioned(Document):
    """The number of partitions of a topic."""

    partitions: int = Field(ge=0)
    """The number of partitions; 0 if the topic is not partitioned."""


PartitionCount = Annotated[int, Field(ge=1, le=_MOST)]


class PartitionedMetadata(Document):
    """The number of partitions in its newer form. The properties are ignored."""

    partitions: PartitionCount
    properties: dict[str, str] | None = None


_PATHS: Final = [
    f"/admin/v2/{domain}/{{tenant}}/{{namespace}}/{{topic}}/partitions" for domain in DOMAINS
]


class Partitions(Resource, tag="topics"):
    def __init__(self, lookup: LookupService, context: Context) -> None:
        self._lookup = lookup
        self._cluster_state = context.cluster_state
        self._documents = Documents(context.coordination)

    @operation(
        *(f"GET {path}" for path in _PATHS),
        Reply(200, "The number of partitions.", Partitioned),
        Reply(404, "The namespace does not exist."),
        role=Role.LOOKUP,
    )
    async def partitions(self, topic: TopicName) -> Partitioned:
        """Get the number of partitions of a topic."""
        return Partitioned(partitions=await self._lookup.partitions(topic))

    @operation(
        *(f"PUT {path}" for path in _PATHS),
        Reply(204, "The topic is partitioned."),
        Reply(404, "The namespace does not exist."),
        Reply(409, "The topic has partitions already."),
    )
    async def create(self, topic: TopicName, body: PartitionCount | PartitionedMetadata) -> None:
        """Make a topic a partitioned topic.

        The body is the number of partitions, or an object that contains it.
        """
        partitions = body if isinstance(body, int) else body.partitions
        await boundaries_of(self._cluster_state, topic.namespace)

        def edit(data: bytes | None) -> bytes:
            if data is not None:
                raise Conflict(f"topic {topic} is partitioned already")
            return encode_partitions(partitions)

        await self._documents.change(_checked(znodes.partitions(topic), topic), edit)

    @operation(
        *(f"DELETE {path}" for path in _PATHS),
        Reply(204, "The topic has no partitions."),
        Reply(404, "The topic has no partitions."),
        Reply(409, "Another client changed it at the same time."),
    )
    async def remove(self, topic: TopicName) -> None:
        """Remove the partitions of a topic; brokers keep open what they have open."""
        path = _checked(znodes.partitions(topic), topic)
        if await self._documents.read(path) is None:
            raise Missing(f"topic {topic} is not partitioned")
        await self._documents.change(path, lambda _: None)
