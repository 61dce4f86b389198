"""Splitting a bundle by hand, as Pulsar's admin REST has it."""

from collections.abc import Callable
from typing import Annotated, Final

from aiohttp import web
from pydantic import Field

from loadmanager.adapters.http.admin.names import namespace_in
from loadmanager.adapters.http.operations import Call, Reply, Resource, operation
from loadmanager.adapters.http.parameters import PATH_PARAMETERS, Flag, Parameter, Query
from loadmanager.adapters.http.replies import empty_reply
from loadmanager.adapters.http.routes import Role
from loadmanager.core.hashing import FULL_RANGE_END
from loadmanager.core.orders import SplitOrder
from loadmanager.ports import SplitService

DEFAULT_ALGORITHM: Final = "range_equally_divide"
_MOST_POSITIONS: Final = 1_000

Position = Annotated[int, Field(ge=0, le=FULL_RANGE_END)]
_RANGE: Final = PATH_PARAMETERS["bundle"]
_CHOSEN: Final = Parameter(
    {"anyOf": [_RANGE.schema, {"type": "string", "enum": ["LARGEST", "HOT"]}]},
    "A bundle by its range, or `LARGEST` (most topics) or `HOT` (most traffic).",
)


class SplitQuery(Query):
    """How a bundle is cut."""

    algorithm: str = Field(
        "",
        alias="splitAlgorithmName",
        description="`range_equally_divide`, `topic_count_equally_divide`, "
        "`specified_positions_divide` or `flow_or_qps_equally_divide`; else the configured one.",
    )
    unload: Flag = Field(
        default=False,
        description="Of no effect: all parts but the first are given a new place anyway.",
    )
    authoritative: Flag = Field(
        default=False, description="Of no effect: redirects go to the leader."
    )


class Splits(Resource):
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
        tag="bundles",
        summary="Cut a bundle.",
        role=Role.ADMIN,
        replies=(
            Reply(204, "Its parts are in the namespace's boundaries."),
            Reply(404, "There is no such namespace, or it has no such bundle (any more)."),
            Reply(412, "The algorithm or its positions do not fit, or nobody owns the bundle."),
        ),
        query=SplitQuery,
        body=Annotated[list[Position], Field(max_length=_MOST_POSITIONS)] | None,
        body_optional=True,
        parameters={"bundle": _CHOSEN},
        leader=True,
    )
    async def split(self, call: Call) -> web.StreamResponse:
        """Have the bundle cut.

        The body names the positions for `specified_positions_divide`.
        """
        query: SplitQuery = call.query
        positions: list[int] = call.body or []
        order = SplitOrder(query.algorithm or self._default_algorithm(), tuple(positions))
        await self._service.split(namespace_in(call), call.path["bundle"], order)
        return empty_reply(204)
