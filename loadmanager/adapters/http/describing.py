import html
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final, Literal

from aiohttp import web
from pydantic import BaseModel, Field, TypeAdapter
from pydantic.json_schema import JsonSchemaValue

from loadmanager.adapters.http.operations import (
    TEXT,
    Operation,
    Reply,
    Resource,
    all_replies,
    by_tag,
    operation,
)
from loadmanager.adapters.http.routes import Role, Target, bytes_reply

OPENAPI_VERSION: Final = "3.1.0"
_REF: Final = "#/components/schemas/{model}"
_REFUSED_FROM: Final = 400
_Key = tuple[str, str, str]
_Mode = Literal["validation", "serialization"]


class Refusal(BaseModel):
    """Why a request was refused."""

    reason: str = Field(
        description="The reason as text for people: the place, the problem, and what was expected."
    )


def openapi_document(operations: Sequence[Operation], version: str) -> dict[str, Any]:
    schemas, components = _schemas(operations)
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        paths.setdefault(one.path, {})[one.method.lower()] = _described_operation(one, schemas)
    tags = dict.fromkeys(one.tag for one in operations)
    return {
        "openapi": OPENAPI_VERSION,
        "info": {
            "title": "loadmanager",
            "version": version,
            "description": "The load manager's sidecar: lookups and admin calls as Apache Pulsar's "
            "brokers answer them, and what it has beyond that under `/admin/v2/loadmanager`.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": tag} for tag in tags],
        "paths": paths,
        "components": {"schemas": components},
    }


def query_parameters(one: Operation) -> list[dict[str, Any]]:
    if one.query is None:
        return []
    schema = one.query.model_json_schema(by_alias=True)
    required = schema.get("required", ())
    return [
        {
            "name": name,
            "in": "query",
            "required": name in required,
            "description": " ".join(found.get("description", "").split()),
            "schema": _plain(found),
        }
        for name, found in schema["properties"].items()
    ]


def _described_operation(one: Operation, schemas: dict[_Key, JsonSchemaValue]) -> dict[str, Any]:
    path = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": one.parameter(name).description,
            "schema": dict(one.parameter(name).schema),
        }
        for name in one.captures
    ]
    described: dict[str, Any] = {
        "operationId": f"{one.name}.{one.method.lower()}.{one.path.strip('/')}",
        "tags": [one.tag],
        "summary": one.summary,
        "description": one.details,
        "x-role": one.role.value,
        "x-pulsar": not one.ours,
        "parameters": [*path, *query_parameters(one)],
        "responses": {
            str(reply.status): _response(one, reply, schemas) for reply in all_replies(one)
        },
    }
    if one.body is not None:
        schema = schemas[one.method, one.path, "body"]
        described["requestBody"] = {
            "required": not one.body_optional,
            "content": {"application/json": {"schema": schema}},
        }
    return described


def _response(one: Operation, reply: Reply, schemas: dict[_Key, JsonSchemaValue]) -> dict[str, Any]:
    described: dict[str, Any] = {"description": reply.meaning}
    if reply.status == 307:  # noqa: PLR2004 - HTTP
        described["headers"] = {"Location": {"schema": {"type": "string"}}}
    if reply.status >= _REFUSED_FROM or reply.status == 307:  # noqa: PLR2004 - the same
        schema: JsonSchemaValue = {"$ref": _REF.format(model="Refusal")}
        described["content"] = {"application/json": {"schema": schema}}
    elif reply.content == TEXT:
        described["content"] = {TEXT: {"schema": {"type": "string"}}}
    elif reply.content is not None:
        schema = schemas[one.method, one.path, str(reply.status)]
        described["content"] = {one.media_type: {"schema": schema}}
    return described


def _schemas(
    operations: Iterable[Operation],
) -> tuple[dict[_Key, JsonSchemaValue], dict[str, Any]]:
    wanted: list[tuple[Any, _Mode, TypeAdapter[Any]]] = [
        (("", "", ""), "serialization", TypeAdapter(Refusal))
    ]
    for one in operations:
        if one.body is not None:
            wanted.append(((one.method, one.path, "body"), "validation", TypeAdapter(one.body)))
        for reply in one.replies:
            if reply.content not in {None, TEXT}:
                key = (one.method, one.path, str(reply.status))
                wanted.append((key, "serialization", TypeAdapter(reply.content)))
    found, defs = TypeAdapter.json_schemas(wanted, ref_template=_REF)
    schemas = {key: schema for (key, _mode), schema in found.items()}
    return schemas, defs.get("$defs", {})


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in schema.items() if key not in {"description", "title"}}
    choices = [one for one in kept.pop("anyOf", []) if one.get("type") != "null"]
    for choice in choices[:1]:
        kept = {**choice, **kept}
    if kept.get("default", 0) is None:
        del kept["default"]
    return kept


_CODE: Final = re.compile(r"`([^`]*)`")

_INTRODUCTION: Final = """\
<p>Lookups and admin calls as Apache Pulsar's brokers answer them, and what there is beyond that
under <code>/admin/v2/loadmanager</code>. For programs: <a href="openapi.json">openapi.json</a>.
Every refusal is <code>{"reason": ...}</code>.</p>"""

_STYLE: Final = """\
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem;
  color: #1b1f24; background: #fff; }
h1 { font-size: 1.6rem; } h2 { margin-top: 2.5rem; border-bottom: 1px solid #ccc; }
details { border: 1px solid #ddd; border-radius: 6px; margin: .5rem 0; padding: .4rem .8rem; }
summary { cursor: pointer; } code { font: 13px ui-monospace, monospace; }
.method { display: inline-block; width: 4.5rem; font-weight: 700; }
.said { color: #555; } .mark { color: #777; font-size: 12px; float: right; }
table { border-collapse: collapse; margin: .6rem 0; width: 100%; }
td, th { border-top: 1px solid #eee; padding: .25rem .5rem; text-align: left; vertical-align: top; }
@media (prefers-color-scheme: dark) {
  body { color: #d6dbe1; background: #14171a; } h2, details { border-color: #333a41; }
  td, th { border-color: #262c32; } .said, .mark { color: #98a2ad; } a { color: #7ab7ff; } }
"""


def page(operations: Sequence[Operation], version: str) -> str:
    groups = by_tag(operations)
    links = " · ".join(f'<a href="#{_anchor(tag)}">{_escaped(tag)}</a>' for tag in groups)
    lines = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>loadmanager {_escaped(version)}</title>",
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>loadmanager {_escaped(version)}</h1>",
        _INTRODUCTION,
        f"<p>{links}</p>",
    ]
    for tag, group in groups.items():
        lines += [f'<h2 id="{_anchor(tag)}">{_escaped(tag)}</h2>']
        lines += [line for one in group for line in _described(one)]
    return "\n".join([*lines, "</body></html>", ""])


def _described(one: Operation) -> Iterator[str]:
    marks = [one.role.value, "leader" if one.leader else "", "" if one.ours else "as Pulsar"]
    yield "<details><summary>"
    yield f'<span class="mark">{" · ".join(mark for mark in marks if mark)}</span>'
    yield f'<span class="method">{one.method}</span><code>{_escaped(one.path)}</code><br>'
    yield f'<span class="said">{_shown(one.summary)}</span></summary>'
    yield from (f"<p>{_shown(text)}</p>" for text in one.details.split("\n\n") if text)
    yield from _table("parameter", _parameters(one))
    if one.body is not None:
        wanted = "optional" if one.body_optional else "needed"
        yield f"<p>Body: JSON, {wanted}; its form is in openapi.json.</p>"
    yield from _table("status", ((str(reply.status), reply.meaning) for reply in all_replies(one)))
    yield "</details>"


def _parameters(one: Operation) -> Iterator[tuple[str, str]]:
    for name in one.captures:
        yield f"{{{name}}}", one.parameter(name).description
    for found in query_parameters(one):
        yield f"?{found['name']}", found["description"]


def _table(what: str, rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    lines = [f"<tr><td><code>{_escaped(a)}</code></td><td>{_shown(b)}</td></tr>" for a, b in rows]
    if lines:
        yield f"<table><tr><th>{what}</th><th></th></tr>"
        yield from lines
        yield "</table>"


def _anchor(tag: str) -> str:
    return _escaped(tag.replace(" ", "-"))


def _escaped(text: str) -> str:
    return html.escape(text)


def _shown(text: str) -> str:
    """Put text in backquotes into code elements."""
    return _CODE.sub(r"<code>\1</code>", _escaped(text))


_HTML = "text/html"


class Describing(Resource, tag="watching"):
    def __init__(self, version: str, operations: Sequence[Operation]) -> None:
        self._version = version
        self._operations = operations

    @operation(
        "GET",
        "/openapi.json",
        Reply(200, "The document.", dict[str, Any]),
        role=Role.NOBODY,
        raw=True,
    )
    async def document(self, _request: web.BaseRequest, _target: Target) -> web.StreamResponse:
        """Get this API as an OpenAPI document."""
        return bytes_reply(self._document, "application/json")

    @operation(
        "GET",
        "/docs",
        Reply(200, "The page, which loads no other files.", str),
        role=Role.NOBODY,
        raw=True,
        media_type=_HTML,
    )
    async def page(self, _request: web.BaseRequest, _target: Target) -> web.StreamResponse:
        """Get this API as a page to read."""
        return bytes_reply(self._page, f"{_HTML}; charset=utf-8")

    @cached_property
    def _document(self) -> bytes:
        return json.dumps(openapi_document(self._operations, self._version)).encode()

    @cached_property
    def _page(self) -> bytes:
        return page(self._operations, self._version).encode()
