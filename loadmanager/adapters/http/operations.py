"""Operations of the HTTP API, each declared as a decorator of the method that answers it.

An example::

    class Domains(Resource, tag="failure domains"):
        @operation(
            "GET /admin/v2/clusters/{cluster}/failureDomains/{failure_domain}",
            Reply(200, "The brokers of the domain.", Domain),
            Reply(404, "The domain does not exist."),
        )
        async def one(self, cluster: str, failure_domain: str) -> Domain: ...

The declaration has method, path and replies, the role that a caller needs and whether only the
leader can answer. The first line of the method's docstring is the summary, the rest the details.
From both are made the route with its checks (`Resource.routes`), the OpenAPI document (`openapi`),
the tables of the documentation (`reference`), and, if a guard is set (`HttpServer`), the check of
the role: each `Route` carries the role of its operation.

The parameters of the method are what it reads of the request:

- A name in braces in the path, decoded once. It is described in `PATH_PARAMETERS`.
  ``namespace``, ``broker`` and ``topic`` are parsed: they are a `Namespace`, a `BrokerId` and a
  `TopicName`, to which the tenant and the domain in the path belong.
- ``query`` is a pydantic model; its fields are the query parameters. Unknown parameters are
  ignored, as in Pulsar.
- ``body`` is of any type that pydantic can read from JSON. With a default it is optional.

The method, which may be a coroutine, returns the content of the reply, an object with the
attributes of the declared `Document`, or None for 204. It refuses a request by an exception that
`refusal_of` knows.

- ``role`` is `Role.READ` for GET and `Role.ADMIN` for all others unless it is given.
- ``leader``: a method may raise `LeaderElsewhere`; the client is then redirected there by 307.
- ``raw``: the method reads the request itself, as ``method(request, target)``. Lookups do.
- The replies are those specific to this operation. `all_replies` adds those that are common to
  all operations of its kind (400, 401, 403, 405, 412, 413, 415, 503).
"""

import asyncio
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Final, TypeVar, get_type_hints
from urllib.parse import parse_qsl

from aiohttp import web
from aiohttp.http import HttpVersion11
from aiohttp.web import RequestPayloadError
from pydantic import (
    AliasGenerator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Strict,
    TypeAdapter,
    ValidationError,
)
from pydantic.alias_generators import to_camel

from loadmanager.adapters.http.routes import (
    Handler,
    Refused,
    Role,
    Route,
    Target,
    bytes_reply,
    empty_reply,
    json_reply,
    text_reply,
)
from loadmanager.core.ids import parse_broker, parse_namespace, topic_from_parts
from loadmanager.ports.lookup import LeaderElsewhere

_WHOLE: Final = re.compile(r"-?[0-9]{1,19}")
_FLAGS: Final = {"true": True, "false": False}

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A name in a path: its JSON schema, and its description for documentation.

    The pattern of a ``strict`` parameter is checked here, because no other code checks it.
    """

    schema: Mapping[str, Any]
    description: str
    strict: bool = False

    def check(self, name: str, text: str) -> None:
        """Refuse text that is longer than the schema allows (412); the core checks the rest."""
        most = self.schema.get("maxLength")
        if most is not None and len(text) > most:
            raise Refused(412, f"{name} has {len(text)} characters; expected at most {most}")
        expected = self.schema.get("pattern")
        if self.strict and expected and not re.fullmatch(expected, text):
            wanted = self.description.rpartition(": ")[2].rstrip(".")
            raise Refused(412, f"{name} {text!a} is not valid; expected {wanted}")


class Query(BaseModel):
    """The query parameters of an operation, unknown ones ignored."""

    model_config = ConfigDict(
        extra="ignore", frozen=True, populate_by_name=True, use_attribute_docstrings=True
    )


def _flag(value: object) -> object:
    return _FLAGS.get(value.lower(), value) if isinstance(value, str) else value


def _whole(value: object) -> object:
    return int(value) if isinstance(value, str) and _WHOLE.fullmatch(value) else value


# Pydantic alone would also take "yes", "1", "1_0" and " 1 ".
Flag = Annotated[bool, Strict(), BeforeValidator(_flag)]
"""``true`` or ``false``, in any case."""

Whole = Annotated[int, Strict(), BeforeValidator(_whole)]
"""A whole number in decimal digits."""


def read_query(model: type[Model], text: str) -> Model:
    """Raises `Refused`: a value is invalid, not UTF-8, or given twice and different (400)."""
    found: dict[str, list[str]] = {}
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict")
    except ValueError:
        raise Refused(400, "the query is not percent-encoded UTF-8") from None
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    values: dict[str, object] = {}
    for name, known in model.model_fields.items():
        key = known.alias or name
        given = found.get(key)
        if given is None:
            continue
        several = getattr(known.annotation, "__origin__", None) in {list, tuple}
        if not several and len(set(given)) > 1:
            raise Refused(400, f"{key} is given {len(given)} times, with different values")
        values[key] = given if several else given[0]
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise Refused(400, f"the query parameter {fault_text(error)}") from None


def fault_text(error: ValidationError) -> str:
    """Return the first faults of a value, each as place, value and what was expected."""
    faults = error.errors(include_url=False, include_context=False)
    lines = []
    for fault in faults[:3]:
        place = ".".join(str(part) for part in fault["loc"])
        shown = ascii(fault["input"])
        if len(shown) > 60:  # noqa: PLR2004 - enough characters to recognize the value
            shown = f"{shown[:60]}..."
        lines.append(f"{place or 'as a whole'} = {shown}: {fault['msg']}")
    more = f"; and {len(faults) - 3} more" if len(faults) > 3 else ""  # noqa: PLR2004 - those shown
    return "; ".join(lines) + more


_NAME: Final = {"type": "string", "pattern": r"^(?!\.{1,2}$)[-=:.A-Za-z0-9_]+$", "maxLength": 200}
_RANGE: Final = {"type": "string", "pattern": r"^0x[0-9a-f]{8}_0x[0-9a-f]{8}$"}
_BROKER: Final = {
    "type": "string",
    "pattern": r"^(\[[0-9a-fA-F:.]+\]|[-.A-Za-z0-9_]+):[1-9][0-9]{0,4}$",
}
_LETTERS: Final = "letters, digits and `-=:._`"

PATH_PARAMETERS: Final[Mapping[str, Parameter]] = {
    "tenant": Parameter(_NAME, "The name of a tenant: letters, digits and `-=:._`."),
    "namespace": Parameter(
        _NAME, "The name of a namespace of the tenant: letters, digits and `-=:._`."
    ),
    "bundle": Parameter(
        _RANGE, "The range of a present bundle of the namespace, `0xLLLLLLLL_0xUUUUUUUU`."
    ),
    "topic": Parameter(
        {"type": "string", "minLength": 1},
        "The local name of a topic, percent-encoded once; a `/` in it is `%2F`.",
    ),
    "domain": Parameter(
        {"type": "string", "enum": ["persistent", "non-persistent", "topic"]},
        "The domain of a topic.",
    ),
    "broker": Parameter(_BROKER, "The id of a broker, `host:port` of its web service."),
    "cluster": Parameter(_NAME, "The name of the cluster, `[cluster] name` in the configuration."),
    "policy": Parameter(_NAME, f"The name of an isolation policy: {_LETTERS}.", strict=True),
    "failure_domain": Parameter(_NAME, f"The name of a failure domain: {_LETTERS}.", strict=True),
    "group": Parameter(_NAME, f"The name of an anti-affinity group: {_LETTERS}.", strict=True),
    "key": Parameter(_NAME, "The name of a setting, percent-encoded."),
    "value": Parameter(
        {"type": "string", "minLength": 1, "maxLength": 1000},
        "The value, percent-encoded; a `/` in it is `%2F`.",
    ),
}


_WITHIN_S: Final = 30.0
_IDLE_S: Final = 10.0
# Up to here every integer has an exact float.
_EXACT: Final = 2.0**53


async def json_object(request: web.BaseRequest) -> dict[str, Any]:
    """Return the body's JSON object; an empty body is an empty object.

    Raises `Refused`: the body is too large (413), not JSON or not an object (400), or the request
    has an ``Expect`` header that is not supported (417).
    """
    text = await body_bytes(request)
    value = _parsed(text) if text.strip() else {}
    if not isinstance(value, dict):
        raise Refused(400, f"the body must be a JSON object, not {type(value).__name__}")
    return value


async def json_body(
    request: web.BaseRequest, form: "TypeAdapter[Any]", *, optional: bool = False
) -> Any:
    """Return the body as a value of ``form``; None if it is ``optional`` and missing.

    Raises `Refused`: as `json_object`; or the body has another content type (415) or form (400).
    """
    text = await body_bytes(request)
    if not text.strip():
        if optional:
            return None
        raise Refused(400, "the body is missing; expected JSON")
    kind = request.headers.get("Content-Type", "application/json").partition(";")[0].strip()
    if not re.fullmatch(r"(?i)application/(json|.*\+json)", kind):
        raise Refused(415, f"the body is {request.content_type}; expected application/json")
    value = _parsed(text)
    try:
        # Through Python's parser, because its messages name the place, and without NaN.
        return form.validate_json(json.dumps(value, allow_nan=False), strict=True)
    except ValidationError as error:
        raise Refused(400, f"the body: {fault_text(error)}") from None
    except ValueError as error:
        raise Refused(400, f"the body: {error}") from None


async def body_bytes(
    request: web.BaseRequest, within_s: float = _WITHIN_S, idle_s: float = _IDLE_S
) -> bytes:
    """Return the bytes of the body.

    Raises `Refused`: 400, 413 and 417 as `json_object`; 408 if it is not complete in time, or no
    byte arrives for ``idle_s``.
    """
    await _invite(request)
    try:
        async with asyncio.timeout(within_s):
            return await _read(request, idle_s)
    except TimeoutError:
        raise _late(f"the body did not come within {within_s:g} s") from None
    except RequestPayloadError as error:
        raise Refused(400, f"the body cannot be read: {error}") from error


async def _read(request: web.BaseRequest, idle_s: float) -> bytes:
    body = bytearray()
    while True:
        try:
            async with asyncio.timeout(idle_s):
                came = await request.content.readany()
        except TimeoutError:
            raise _late(f"nothing of the body came for {idle_s:g} s") from None
        if not came:
            return bytes(body)
        body += came
        if len(body) > request.client_max_size:
            raise Refused(413, f"the body is longer than {request.client_max_size} bytes")


def _late(why: str) -> Refused:
    return Refused(408, why, {"Connection": "close"})


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text, parse_float=_number)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON: {error}") from None


def _number(text: str) -> float:
    """Return a JSON number, as an int if it is integral: 7.0 is 7."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < _EXACT else value


async def _invite(request: web.BaseRequest) -> None:
    expected = request.headers.get("Expect")
    if expected is None or request.version != HttpVersion11:
        return
    if expected.lower() != "100-continue":
        raise Refused(417, f"cannot meet the expectation {expected!r}")
    writer = request.writer
    await writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    # The interim response does not count: errors after it must still be answered.
    writer.output_size = 0


TEXT: Final = "text/plain"
"""Content type of a reply: plain text."""

_MARK: Final = "_loadmanager_operations"

Method = TypeVar("Method", bound=Callable[..., Any])


class Document(BaseModel):
    """A JSON object in a body or a reply: each field is described below it.

    One can be made of an object with the same attributes, by `model_validate`.
    """

    model_config = ConfigDict(
        from_attributes=True,
        use_attribute_docstrings=True,
        alias_generator=AliasGenerator(serialization_alias=to_camel),
    )


@dataclass(frozen=True, slots=True)
class Reply:
    """One status of an operation's replies: its meaning, and the type of its body.

    ``content`` is a type for pydantic, `TEXT`, or None for an empty body; refusals (400
    and above) always have ``{"reason": ...}``.
    """

    status: int
    meaning: str
    content: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    name: str
    method: str
    path: str
    summary: str
    details: str
    role: Role
    replies: tuple[Reply, ...]
    tag: str = ""
    takes: tuple[str, ...] = ()
    query: type[BaseModel] | None = None
    body: Any = None
    body_optional: bool = False
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    leader: bool = False
    raw: bool = False

    @property
    def ours(self) -> bool:
        return not self.path.startswith(("/admin/v2/", "/lookup/")) or self.path.startswith(
            "/admin/v2/loadmanager/"
        )

    @property
    def captures(self) -> tuple[str, ...]:
        parts = self.path.split("/")
        return tuple(part[1:-1] for part in parts if part.startswith("{"))

    @property
    def pattern(self) -> str:
        parts = self.path.split("/")
        return "/".join("{}" if part.startswith("{") else part for part in parts)

    def parameter(self, name: str) -> Parameter:
        return self.parameters.get(name) or PATH_PARAMETERS[name]


def operation(
    *declared: str | Reply,
    role: Role | None = None,
    query: type[BaseModel] | None = None,
    **more: Any,
) -> Callable[[Method], Method]:
    """Declare a method as the answer to requests, each ``METHOD path``, with its replies.

    ``more`` are other fields of `Operation`: ``tag``, ``parameters``, ``leader``, ``raw``.
    ``query`` is for methods without a parameter of that name: it is read, and of its values those
    are passed that the method has parameters for.
    """
    values = {*query.model_fields} if query else set()
    replies = tuple(one for one in declared if isinstance(one, Reply))

    def one_of(request: str, function: Callable[..., Any]) -> Operation:
        method, _, path = request.partition(" ")
        summary, _, details = inspect.cleandoc(function.__doc__ or "").partition("\n\n")
        hints = get_type_hints(function, include_extras=True)
        given = inspect.signature(function).parameters
        return Operation(
            name=function.__name__,
            method=method,
            path=path,
            summary=summary,
            details="\n\n".join(" ".join(text.split()) for text in details.split("\n\n")),
            role=role or (Role.READ if method == "GET" else Role.ADMIN),
            replies=replies,
            takes=tuple(
                name
                for name in given
                if name in {"query", "body", *values} or f"{{{name}}}" in path.split("/")
            ),
            query=query or hints.get("query"),
            body=hints.get("body"),
            body_optional="body" in given and given["body"].default is None,
            **more,
        )

    def declare(function: Method) -> Method:
        # Decorators are applied from the bottom, so the first one in the text comes first.
        found = [one_of(request, function) for request in declared if isinstance(request, str)]
        setattr(function, _MARK, [*found, *getattr(function, _MARK, ())])
        return function

    return declare


def operations_of(*kinds: "type[Resource]") -> tuple[Operation, ...]:
    return tuple(one for kind in kinds for _, one in _declared(kind))


class Resource:
    """Answers requests by its methods, each declared with `operation`.

    ``tag`` is the heading under which its operations are listed, unless they declare another.
    """

    tag: ClassVar[str]

    def __init_subclass__(cls, *, tag: str = "") -> None:
        cls.tag = tag or cls.tag

    def routes(self) -> list[Route]:
        found = []
        for name, one in _declared(type(self)):
            method = getattr(self, name)
            body = None if one.body is None else TypeAdapter(one.body)
            handler: Handler = method if one.raw else partial(_answer, one, body, method)
            found.append(Route(one.method, one.pattern, handler, one.role, one))
        return found


def all_replies(one: Operation) -> tuple[Reply, ...]:
    by_status = {reply.status: reply for reply in (*_usual(one), *one.replies)}
    return tuple(by_status[status] for status in sorted(by_status))


def _usual(one: Operation) -> Iterator[Reply]:
    if one.leader:
        yield Reply(307, "Another sidecar leads; `Location` is its URL.")
    if one.captures or one.query or one.body:
        yield Reply(400, "A parameter or the body is malformed.")
        yield Reply(414, "The URL is too long.")
    if one.captures:
        yield Reply(412, "A name in the path is not valid.")
    if one.body:
        yield Reply(408, "The body did not arrive in time.")
        yield Reply(413, "The body is too long.")
        yield Reply(415, "The body is not `application/json`.")
    if one.role is not Role.NOBODY:
        yield Reply(401, "The request has no valid credentials, which are required.")
        yield Reply(403, f"The caller does not have the role `{one.role}`.")
        yield Reply(
            503, "No leader, ZooKeeper or broker is available; `Retry-After` says when to retry."
        )


def _declared(kind: "type[Resource]") -> Iterator[tuple[str, Operation]]:
    for base in kind.__mro__:
        for name, function in vars(base).items():
            for one in getattr(function, _MARK, ()):
                tag = one.tag or kind.tag
                yield name, replace(one, tag=tag, name=f"{tag.replace(' ', '_')}.{name}")


async def _answer(
    one: Operation,
    body: "TypeAdapter[Any] | None",
    method: Callable[..., Any],
    request: web.BaseRequest,
    target: Target,
) -> web.StreamResponse:
    path = dict(zip(one.captures, target.captured, strict=True))
    for name, text in path.items():
        one.parameter(name).check(name, text)
    read: dict[str, Any] = {}
    if one.query is not None:
        read["query"] = read_query(one.query, target.query_text)
        read |= {name: value for name, value in read["query"] if name not in path}
    if body is not None:
        read["body"] = await json_body(request, body, optional=one.body_optional)
    given = {name: read[name] if name in read else _named(name, one, path) for name in one.takes}
    try:
        value = method(**given)
        return _reply(one, await value if inspect.isawaitable(value) else value)
    except LeaderElsewhere as error:
        location = error.sidecar_url.rstrip("/") + target.path_and_query
        raise Refused(307, str(error), {"Location": location}) from error


def _named(name: str, one: Operation, path: Mapping[str, str]) -> Any:
    match name:
        case "namespace":
            return parse_namespace(f"{path['tenant']}/{path['namespace']}")
        case "broker":
            return parse_broker(path["broker"])
        case "topic":
            domain = one.path.split("/")[3]
            return topic_from_parts(domain, path["tenant"], path["namespace"], path["topic"])
        case _:
            return path[name]


def _reply(one: Operation, value: Any) -> web.StreamResponse:
    if value is None:
        return empty_reply(204)
    if isinstance(value, bytes):
        return bytes_reply(value, "application/json")
    content = next(reply.content for reply in one.replies if reply.status == 200)  # noqa: PLR2004 - HTTP
    if content == TEXT:
        return text_reply(value)
    is_document = isinstance(content, type) and issubclass(content, Document)
    if is_document and not isinstance(value, Mapping):
        value = content.model_validate(value)
    return json_reply(value)
