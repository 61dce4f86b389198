import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Final, Literal

from pydantic import BaseModel, Field, TypeAdapter
from pydantic.json_schema import JsonSchemaValue

from loadmanager.adapters.http.operations import (
    TEXT,
    Operation,
    Reply,
    Resource,
    all_replies,
    operation,
)
from loadmanager.adapters.http.routes import Role, Route

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


def _query_parameters(one: Operation) -> list[dict[str, Any]]:
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
        "parameters": [*path, *_query_parameters(one)],
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
        described["content"] = {"application/json": {"schema": schema}}
    return described


def _schemas(operations: Iterable[Operation]) -> tuple[dict[_Key, JsonSchemaValue], dict[str, Any]]:
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


class Describing(Resource, tag="watching"):
    """Describes the declared operations among ``served`` routes, and its own."""

    def __init__(self, version: str, served: Sequence[Route]) -> None:
        self._version = version
        self._served = served

    @operation("GET /openapi.json", Reply(200, "The document.", dict[str, Any]), role=Role.NOBODY)
    async def document(self) -> bytes:
        """Get this API as an OpenAPI document."""
        return self._document

    @cached_property
    def _document(self) -> bytes:
        routes = (*self._served, *self.routes())
        operations = [one.operation for one in routes if one.operation is not None]
        return json.dumps(openapi_document(operations, self._version)).encode()
