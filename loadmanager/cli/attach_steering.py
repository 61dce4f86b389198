"""Pausing and resuming the moves of ``loadmanager attach`` from its live page."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from aiohttp import web

from loadmanager.adapters.http.replies import Refused, empty_reply, json_reply, unavailable
from loadmanager.adapters.http.routes import Role, Route, Target
from loadmanager.adapters.http.security.origin import OwnNames, is_forwarded, refuse_foreign_page
from loadmanager.admin.steering import BalancingState
from loadmanager.attach.observation import Proposal
from loadmanager.attach.prior_settings import State, StateUnusable
from loadmanager.core.balancing import Balancing, BalancingMode

_ADMIN: Final = "/admin/v2/loadmanager"
_BY: Final = "paused by "
_LONGEST: Final = 200
_RETRY_AFTER_S: Final = 10.0


@dataclass(slots=True)
class PageSteering:
    """Pauses and resumes the balancer of this process, as ``--pause`` and ``--resume`` do.

    Attributes:
        balances: whether moves are made at all.
        proposals: what the last observation of the cluster would move.
    """

    balances: bool
    proposals: Sequence[Proposal] = ()
    _state: State | None = None
    _report: Callable[[str], None] = lambda _: None
    _paused: str = ""

    @contextmanager
    def open(self, state: State, report: Callable[[str], None]) -> Iterator[None]:
        """Allow pausing the balancer of this state while the context lasts.

        ``report`` is called with what was changed.
        """
        self._state, self._report = state, report
        try:
            yield
        finally:
            self._state = None

    @property
    def actions(self) -> tuple[str, ...]:
        """The actions that are available now."""
        return () if self._state is None else ("pause", "resume")

    @property
    def balancing(self) -> Balancing:
        """Whether moves are made."""
        if self._paused:
            return Balancing(mode=BalancingMode.PAUSED, by=self._paused.removeprefix(_BY))
        return Balancing(mode=BalancingMode.ACTIVE if self.balances else BalancingMode.OBSERVING)

    def held(self, why: str) -> str:
        """Keep the reason why a round moves nothing; return it, "" for a pause."""
        self._paused = why if why.startswith(_BY) else ""
        return "" if self._paused else why

    def routes(self) -> list[Route]:
        """Return the routes of the page's buttons."""
        path = f"{_ADMIN}/balancing"
        return [
            Route("GET", path, self._get, Role.READ),
            Route("PUT", f"{path}/pause", self._pause, Role.ADMIN),
            Route("PUT", f"{path}/resume", self._resume, Role.ADMIN),
            Route("GET", f"{_ADMIN}/plan", self._plan, Role.READ),
        ]

    async def _get(self, _request: web.BaseRequest, _target: Target) -> web.StreamResponse:
        return json_reply(BalancingState.model_validate(self.balancing))

    async def _plan(self, _request: web.BaseRequest, _target: Target) -> web.StreamResponse:
        moves = [
            {"bundle": m.bundle, "source": m.source, "target": m.target, "meaning": m.reason()}
            for m in self.proposals
        ]
        return json_reply({"moves": moves, "optimality": None, "withMoves": None})

    async def _pause(self, request: web.BaseRequest, target: Target) -> web.StreamResponse:
        state = self._open_to(request)
        at = datetime.now(tz=UTC).isoformat(timespec="seconds")
        reason = " ".join(target.query("reason").split())[:_LONGEST]
        why = f"{_BY}the live page at {at}{f': {reason}' if reason else ''}"
        try:
            await state.pause(why)
        except StateUnusable as error:
            raise unavailable(str(error), _RETRY_AFTER_S) from None
        self._paused = why
        self._report(f"{why}: nothing moves until it is resumed")
        return empty_reply(204)

    async def _resume(self, request: web.BaseRequest, _target: Target) -> web.StreamResponse:
        state = self._open_to(request)
        try:
            await state.resume()
        except StateUnusable as error:
            raise unavailable(str(error), _RETRY_AFTER_S) from None
        self._paused = ""
        self._report("not paused any more: resumed by the live page")
        return empty_reply(204)

    def _open_to(self, request: web.BaseRequest) -> State:
        """Return the state to change; raises `Refused` for requests without that right."""
        refuse_foreign_page(request, OwnNames())
        if is_forwarded(request):
            raise Refused(403, "a proxy passes the request on; only this host may pause and resume")
        if self._state is None:
            raise unavailable("this process makes no moves now; expected --balance", _RETRY_AFTER_S)
        return self._state
