"""The broker contract on the wire: paths, bodies and answers, for both of its sides.

The prose and the schemas for other languages are in ``docs/broker-contract.md`` and
``docs/broker-contract.openapi.yaml``. Unknown fields are ignored, so that the contract can grow;
known fields must have exactly the promised type.
"""

import hmac
import json
import re
from collections.abc import Mapping
from heapq import nlargest
from pathlib import Path
from typing import Annotated, Any, Final, Self, TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from loadmanager.core.bounds import (
    CLOCK_S,
    COUNT,
    EPOCH,
    PROCESS_ID,
    RATE,
    SIZE_BYTES,
    WINDOW_S,
    Bound,
)
from loadmanager.core.errors import InvalidName, LoadManagerError, MalformedContent
from loadmanager.core.ids import BundleId, TopicName, namespace_of, parse_bundle, parse_full_topic
from loadmanager.core.load import BundleStats
from loadmanager.core.rates import Rates
from loadmanager.ports.broker import BrokerStats

PREFIX: Final = "/loadmanager-broker/v1"
# A bundle is cut long before it has so many, and reading them takes a tenth of a second
# in which the sidecar does nothing else. The busiest show as well where to cut.
MAX_TOPICS: Final = 5_000
# An end of a lease is at most so far after the clock that it is computed from.
_LONGEST_LEASE_S: Final = 86_400.0


def _within(bound: Bound, beyond: float = 0.0) -> Any:
    most = bound.most + beyond if beyond else bound.most
    return Field(ge=bound.least, le=most, allow_inf_nan=None if bound.whole else False)


Epoch = Annotated[int, _within(EPOCH)]
Count = Annotated[int, _within(COUNT)]
SizeBytes = Annotated[int, _within(SIZE_BYTES)]
ClockSeconds = Annotated[float, _within(CLOCK_S)]
LeaseEndSeconds = Annotated[float, _within(CLOCK_S, beyond=_LONGEST_LEASE_S)]
WindowSeconds = Annotated[float, _within(WINDOW_S)]
Rate = Annotated[float, _within(RATE)]
ProcessId = Annotated[int, _within(PROCESS_ID)]
Bundle = Annotated[BundleId, AfterValidator(parse_bundle)]
PulsarUrl = Annotated[str, Field(max_length=512, pattern=r"^(pulsar(\+ssl)?://\S+)?$")]
Incarnation = Annotated[str, Field(min_length=1, max_length=200)]


class Body(BaseModel):
    """A JSON object of the contract."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="ignore",
        alias_generator=to_camel,
        # Code says agent_epoch; on the wire only agentEpoch counts.
        validate_by_name=True,
        validate_by_alias=True,
    )

    @classmethod
    def of(cls, value: object) -> Self:
        return cls.model_validate(value, from_attributes=True)

    def to_json(self) -> bytes:
        return self.model_dump_json(by_alias=True).encode()


class LeaseRequest(Body):
    """Body of ``PUT /lease``; a null ``untilSeconds`` asks without extending.

    ``incarnation`` is the process on whose clock ``untilSeconds`` is.
    """

    agent_epoch: Epoch
    until_seconds: LeaseEndSeconds | None
    incarnation: Incarnation | None


class LoadRequest(Body):
    agent_epoch: Epoch
    fencing_token: Epoch


class UnloadRequest(Body):
    """Query of ``DELETE /bundles/...``."""

    agent_epoch: Epoch
    fencing_token: Epoch
    next_owner_url: PulsarUrl = ""


class LeaseAnswer(Body):
    """Answer to ``PUT /lease``: a `BrokerState`."""

    incarnation: Incarnation
    clock_s: ClockSeconds = Field(alias="clockSeconds")
    serving: Mapping[Bundle, Epoch]


class RatesBody(Body):
    """A `Rates`, under the names of Pulsar's load reports."""

    msgs_in_per_s: Rate = Field(alias="msgRateIn")
    msgs_out_per_s: Rate = Field(alias="msgRateOut")
    bytes_in_per_s: Rate = Field(alias="msgThroughputIn")
    bytes_out_per_s: Rate = Field(alias="msgThroughputOut")


class BundleStatsBody(RatesBody):
    """A `BundleStats`, under the names of Pulsar's load reports."""

    topics: Count = 0
    producers: Count = Field(0, alias="producerCount")
    consumers: Count = Field(0, alias="consumerCount")
    cache_size_bytes: SizeBytes = Field(0, alias="cacheSize")


class StatsAnswer(Body):
    """Answer to ``GET /stats``: a `BrokerStats`."""

    window_s: WindowSeconds = Field(alias="windowSeconds")
    version: str = ""
    process_id: ProcessId | None = None
    bundles: Mapping[Bundle, BundleStatsBody]

    def to_stats(self, left_out: tuple[str, ...] = ()) -> BrokerStats:
        """Return what the answer reports; ``left_out`` names the figures that were not usable."""
        bundles = {bundle: BundleStats(**vars(one)) for bundle, one in self.bundles.items()}
        return BrokerStats(**{**vars(self), "bundles": bundles}, left_out=left_out)


class TopicsAnswer(Body):
    """Answer to ``GET /bundles/.../topics``."""

    topics: Annotated[Mapping[str, RatesBody], Field(max_length=MAX_TOPICS)]

    @classmethod
    def busiest_of(cls, topics: Mapping[TopicName, Rates]) -> Self:
        busiest = nlargest(MAX_TOPICS, topics.items(), key=lambda one: one[1].msgs_per_s)
        return cls(topics={str(topic): RatesBody.of(traffic) for topic, traffic in busiest})

    def to_topics(self, bundle: BundleId, where: str) -> Mapping[TopicName, Rates]:
        """Raises `MalformedContent`: a name is no full one, or of another namespace."""
        return {
            _topic_of(bundle, name, where): Rates(**vars(one)) for name, one in self.topics.items()
        }


class ErrorAnswer(Body):
    """The reason in every answer that is no success."""

    reason: str


class PublishAnswer(Body):
    """The in-memory broker accepted a message, at this time of its own clock."""

    incarnation: str
    bundle: Bundle
    fencing_token: Epoch
    clock_seconds: ClockSeconds


_Parsed = TypeVar("_Parsed", bound=Body)


def parsed(model: type[_Parsed], content: bytes, where: str) -> _Parsed:
    """Raises `MalformedContent` with the first faulty field, and ``where`` it is from."""
    try:
        return _validated(model, content)
    except ValidationError as error:
        raise _malformed(error, where) from None


def parsed_stats(content: bytes, where: str) -> BrokerStats:
    """Return a broker's statistics; a bundle's figure outside its bound counts as 0.

    Such figures are named in ``left_out``: one bundle that is measured wrongly does not take the
    others with it. Raises `MalformedContent`: as for `parsed`, for all else that is wrong.
    """
    try:
        return _validated(StatsAnswer, content).to_stats()
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False)
        if not all(_is_figure_of_bundle(fault) for fault in faults):
            raise _malformed(error, where) from None
        malformed = _malformed(error, where)
    try:
        document = json.loads(content)
        for fault in faults:
            _, bundle, figure = fault["loc"]
            document["bundles"][bundle][figure] = 0
        answer = _validated(StatsAnswer, json.dumps(document).encode())
    except (ValueError, LookupError):
        # Python's reader of JSON takes a number of thousands of digits for none.
        raise malformed from None
    return answer.to_stats(tuple(str(_fault_of(fault, where)) for fault in faults))


def _is_figure_of_bundle(fault: Any) -> bool:
    place, found = fault["loc"], fault["input"]
    return (
        len(place) == len(("bundles", "bundle", "figure"))
        and place[0] == "bundles"
        and type(found) in {int, float}
    )


def _validated(model: type[_Parsed], content: bytes) -> _Parsed:
    return model.model_validate_json(content, by_alias=True, by_name=False)


def parsed_query(model: type[_Parsed], query: Mapping[str, str], where: str) -> _Parsed:
    try:
        return model.model_validate_strings(dict(query), by_alias=True, by_name=False)
    except ValidationError as error:
        raise _malformed(error, where) from None


def _topic_of(bundle: BundleId, name: str, where: str) -> TopicName:
    try:
        topic = parse_full_topic(name)
    except InvalidName as error:
        what = f"topics.{_shortened(name)}"
        raise MalformedContent(where, what, f"a topic's full name ({error.expected})") from None
    if topic.namespace != namespace_of(bundle):
        raise MalformedContent(where, f"topics.{_shortened(name)}", f"a topic of {bundle}")
    return topic


def _malformed(error: ValidationError, where: str) -> MalformedContent:
    return _fault_of(error.errors(include_url=False, include_context=False)[0], where)


def _fault_of(first: Any, where: str) -> MalformedContent:
    field = ".".join(str(part)[:200] for part in first["loc"]) or "content"
    expected = first["msg"].removeprefix("Input should be ")
    if first["type"] == "missing":
        return MalformedContent(where, f"{field} is missing", "a value")
    if first["type"] == "json_invalid":
        expected = f"a JSON object ({expected})"
    return MalformedContent(where, f"{field} is {_shortened(first['input'])}", expected)


def _shortened(found: object, limit: int = 80) -> str:
    # Cut before repr(): the value may be megabytes of garbage.
    shown = repr(found[:limit] if isinstance(found, str | bytes) else found)
    return shown if len(shown) <= limit else f"{shown[:limit]}..."


# Short ones can be guessed; a header has no room for endless ones.
_SECRET: Final = re.compile(r"[\x21-\x7e]{16,1024}")
_OPEN: Final = f"{PREFIX}/health"


class SecretUnusable(LoadManagerError):
    """The file of the shared secret cannot be read, or holds none."""


def read_secret(path: Path) -> str:
    """Raises `SecretUnusable`: the message names the file, never the content."""
    expected = "expected a file with 16 to 1,024 printable characters of ASCII without spaces"
    try:
        found = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "no ASCII"
        raise SecretUnusable(f"{path}: {why}; {expected}") from None
    if not _SECRET.fullmatch(found):
        raise SecretUnusable(f"{path}: no usable secret; {expected}")
    return found


def require_secret(secret: str) -> Middleware:
    """Return a middleware that answers 401 to requests of the contract without ``secret``.

    Health needs none: it reveals nothing and changes nothing, and probes have no secret.
    """
    wanted = f"Bearer {secret}".encode("ascii")

    @web.middleware
    async def demand(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith(f"{PREFIX}/") and request.path != _OPEN:
            shown = request.headers.getall("Authorization", [])
            found = shown[0].encode("utf-8", "surrogateescape") if len(shown) == 1 else b""
            if not hmac.compare_digest(found, wanted):
                raise web.HTTPUnauthorized(
                    reason="expected one header Authorization: Bearer, with the shared secret"
                )
        return await handler(request)

    return demand
