"""Operations of the HTTP API, each declared as a decorator of the method that answers it.

An example::

    class Domains(Resource, tag="failure domains"):
        @operation(
            "GET",
            "/admin/v2/clusters/{cluster}/failureDomains/{failure_domain}",
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

- A name in braces in the path, decoded once. It is described in `parameters.PATH_PARAMETERS`.
  ``namespace``, ``broker`` and ``topic`` are parsed: they are a `Namespace`, a `BrokerId` and a
  `TopicName`, to which the tenant and the domain in the path belong.
- ``query`` is a pydantic model; its fields are the query parameters. Unknown parameters are
  ignored, as in Pulsar.
- ``body`` is of any type that pydantic can read from JSON. With a default it is optional.

The method returns the content of the reply, an object with the attributes of the declared
`Document`, or None for 204. It refuses a request by an exception that `refusal_of` knows.

- ``role`` is `Role.READ` for GET and `Role.ADMIN` for all others unless it is given.
- ``leader``: a method may raise `LeaderElsewhere`; the client is then redirected there by 307.
- ``raw``: the method reads the request itself, as ``method(request, target)``. Lookups do.
- The replies are those specific to this operation. `all_replies` adds those that are common to
  all operations of its kind (400, 401, 403, 405, 412, 413, 415, 503).
"""

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Final, TypeVar, get_type_hints

from aiohttp import web
from pydantic import AliasGenerator, BaseModel, ConfigDict, TypeAdapter
from pydantic.alias_generators import to_camel

from loadmanager.adapters.http.parameters import PATH_PARAMETERS, Parameter, json_body, read_query
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
    tag: str
    summary: str
    details: str
    role: Role
    replies: tuple[Reply, ...]
    takes: tuple[str, ...] = ()
    query: type[BaseModel] | None = None
    body: Any = None
    body_optional: bool = False
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    leader: bool = False
    raw: bool = False
    media_type: str = "application/json"

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
    method: str,
    path: str,
    *replies: Reply,
    tag: str = "",
    role: Role | None = None,
    query: type[BaseModel] | None = None,
    parameters: Mapping[str, Parameter] | None = None,
    leader: bool = False,
    raw: bool = False,
    media_type: str = "application/json",
) -> Callable[[Method], Method]:
    """Declare a method as the answer to ``method path``; it may answer several.

    ``query`` is for methods without a parameter of that name: it is read, and its values are
    ignored.
    """

    def declare(function: Method) -> Method:
        declared: list[Operation] = getattr(function, _MARK, [])
        summary, _, details = inspect.cleandoc(function.__doc__ or "").partition("\n\n")
        hints = get_type_hints(function, include_extras=True)
        given = inspect.signature(function).parameters
        one = Operation(
            name=function.__name__,
            method=method,
            path=path,
            tag=tag,
            summary=summary,
            details="\n\n".join(" ".join(text.split()) for text in details.split("\n\n")),
            role=role or (Role.READ if method == "GET" else Role.ADMIN),
            replies=replies,
            takes=tuple(
                name
                for name in given
                if name in {"query", "body"} or f"{{{name}}}" in path.split("/")
            ),
            query=query or hints.get("query"),
            body=hints.get("body"),
            body_optional="body" in given and given["body"].default is None,
            parameters=parameters or {},
            leader=leader,
            raw=raw,
            media_type=media_type,
        )
        # Decorators are applied from the bottom, so the first one in the text comes first.
        setattr(function, _MARK, [one, *declared])
        return function

    return declare


def operations_of(*kinds: "type[Resource]") -> tuple[Operation, ...]:
    return tuple(one for kind in kinds for _, one in _declared(kind))


def by_tag(operations: Sequence[Operation]) -> dict[str, list[Operation]]:
    found: dict[str, list[Operation]] = {}
    for one in operations:
        found.setdefault(one.tag, []).append(one)
    return found


class Resource:
    """Answers requests by its methods, each declared with `operation`.

    ``tag`` is the heading under which its operations are listed, unless they declare another.
    """

    tag: ClassVar[str]

    def __init_subclass__(cls, *, tag: str) -> None:
        cls.tag = tag

    def routes(self) -> list[Route]:
        found = []
        for name, one in _declared(type(self)):
            method = getattr(self, name)
            body = None if one.body is None else TypeAdapter(one.body)
            handler: Handler = method if one.raw else partial(_answer, one, body, method)
            found.append(Route(one.method, one.pattern, handler, one.role))
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
            503,
            "No leader, ZooKeeper or broker is available; `Retry-After` says when to retry.",
        )


def _declared(kind: "type[Resource]") -> Iterator[tuple[str, Operation]]:
    for name, function in vars(kind).items():
        for one in getattr(function, _MARK, ()):
            tag = one.tag or kind.tag
            yield name, replace(one, tag=tag, name=f"{tag.replace(' ', '_')}.{name}")


async def _answer(
    one: Operation,
    body: "TypeAdapter[Any] | None",
    method: Callable[..., Awaitable[Any]],
    request: web.BaseRequest,
    target: Target,
) -> web.StreamResponse:
    path = dict(zip(one.captures, target.captured, strict=True))
    for name, text in path.items():
        one.parameter(name).check(name, text)
    read: dict[str, Any] = {}
    if one.query is not None:
        read["query"] = read_query(one.query, target.query_text)
    if body is not None:
        read["body"] = await json_body(request, body, optional=one.body_optional)
    given = {name: read[name] if name in read else _named(name, one, path) for name in one.takes}
    try:
        return _reply(one, await method(**given))
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
        return bytes_reply(value, one.media_type)
    content = next(reply.content for reply in one.replies if reply.status == 200)  # noqa: PLR2004 - HTTP
    if content == TEXT:
        return text_reply(value)
    is_document = isinstance(content, type) and issubclass(content, Document)
    if is_document and not isinstance(value, Mapping):
        value = content.model_validate(value)
    return json_reply(value)
