"""The description of the API: a document at ``/openapi.json`` and a page at ``/docs``."""

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from aiohttp import web

from loadmanager.adapters.http.openapi import openapi_document
from loadmanager.adapters.http.operations import Operation, Reply, Resource, operation
from loadmanager.adapters.http.page import page
from loadmanager.adapters.http.replies import bytes_reply
from loadmanager.adapters.http.routes import Role, Target

_HTML = "text/html"


class Describing(Resource, tag="watching"):
    """Answers ``/openapi.json`` and ``/docs``."""

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
        Reply(200, "A page that loads nothing else.", str),
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
