"""Splitting a bundle by hand, as Pulsar's admin REST has it."""

from collections.abc import Callable
from typing import Annotated, Final

from aiohttp import web
from pydantic import Field

from loadmanager.adapters.http.admin.names import namespace_in
from loadmanager.adapters.http.operations import Call, Reply, Resource, operation
from loadmanager.adapters.http.parameters import PATH_PARAMETERS, Flag, Parameter, Query
from loadmanager.adapters.http.replies import empty_reply
from loadmanager.core.hashing import FULL_RANGE_END
from loadmanager.core.orders import SplitOrder
from loadmanager.ports import SplitService

DEFAULT_ALGORITHM: Final = "range_equally_divide"
_MOST_POSITIONS: Final = 1_000

Position = Annotated[int, Field(ge=0, le=FULL_RANGE_END)]
_RANGE: Final = PATH_PARAMETERS["bundle"]
_CHOSEN: Final = Parameter(
    {"anyOf": [_RANGE.schema, {"type": "string", "enum": ["LARGEST", "HOT"]}]},
    "The range of a bundle, or `LARGEST` (most topics) or `HOT` (most traffic).",
)


class SplitQuery(Query):
    """How a bundle is split."""

    algorithm: str = Field("", alias="splitAlgorithmName")
    """`range_equally_divide`, `topic_count_equally_divide`, `specified_positions_divide` or
    `flow_or_qps_equally_divide`; else the configured one."""
    unload: Flag = False
    """Of no effect: all parts but the first are always placed anew."""
    authoritative: Flag = False
    """Of no effect: redirects go to the leader."""


class Splits(Resource, tag="bundles"):
    """Answers ``PUT /admin/v2/namespaces/{tenant}/{namespace}/{bundle}/split``.

    ``default_algorithm`` is asked each time, for it may change meanwhile.
    """

    def __init__(
        self,
        service: SplitService,
        default_algorithm: Callable[[], str] = lambda: DEFAULT_ALGORITHM,
    ) -> None:
        self._service = service
        self._default_algorithm = default_algorithm

    @operation(
        "PUT",
        "/admin/v2/namespaces/{tenant}/{namespace}/{bundle}/split",
        Reply(204, "The parts are in the boundaries of the namespace."),
        Reply(404, "The namespace does not exist, or has no such bundle."),
        Reply(
            412, "The algorithm or its positions do not fit the bundle, or the bundle has no owner."
        ),
        query=SplitQuery,
        body=Annotated[list[Position], Field(max_length=_MOST_POSITIONS)] | None,
        body_optional=True,
        parameters={"bundle": _CHOSEN},
        leader=True,
    )
    async def split(self, call: Call) -> web.StreamResponse:
        """Split a bundle.

        The body lists the positions for `specified_positions_divide`.
        """
        query: SplitQuery = call.query
        positions: list[int] = call.body or []
        order = SplitOrder(query.algorithm or self._default_algorithm(), tuple(positions))
        await self._service.split(namespace_in(call), call.path["bundle"], order)
        return empty_reply(204)
