"""What the leader tells of its decisions; other sidecars send those who ask to it."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from loadmanager.adapters.http.replies import Refused, bytes_reply, json_reply
from loadmanager.adapters.http.routes import Handler, Route, Target
from loadmanager.core.explaining import Candidate, Decision, Ground
from loadmanager.core.plan import Reason
from loadmanager.core.snapshot import in_force_to_json
from loadmanager.core.telling import REASONS, sentence
from loadmanager.ports import Account, LeaderDesk, LeaderElsewhere

_DEFAULT_LIMIT: Final = 100
_MOST: Final = 10_000

_Answer = Callable[[Target], Awaitable[web.StreamResponse]]


class Accounts:
    """Answers under ``/admin/v2/loadmanager``."""

    def __init__(self, desk: LeaderDesk) -> None:
        self._desk = desk

    def routes(self) -> list[Route]:
        """Return the routes of this file."""
        return [
            Route("GET", "/admin/v2/loadmanager/snapshot", at_the_leader(self.snapshot)),
            Route("GET", "/admin/v2/loadmanager/explain", at_the_leader(self.explain)),
            Route("GET", "/admin/v2/loadmanager/decisions", at_the_leader(self.decisions)),
        ]

    async def snapshot(self, _target: Target) -> web.StreamResponse:
        """Give the cluster as one document, to decide on elsewhere."""
        return bytes_reply(await self._desk.snapshot(), "application/json")

    async def explain(self, target: Target) -> web.StreamResponse:
        """Tell why a bundle or a broker is where it is."""
        subject = target.query("subject")
        if not subject:
            raise Refused(400, "subject is missing; expected a bundle or a broker")
        return json_reply(account_to_json(self._desk.explain(subject)))

    async def decisions(self, target: Target) -> web.StreamResponse:
        """Tell the last decisions, newest first."""
        text = target.query("limit") or str(_DEFAULT_LIMIT)
        if not (text.isascii() and text.isdecimal() and 0 < int(text) <= _MOST):
            raise Refused(400, f"limit = {text[:40]!r}; expected a whole number from 1 to {_MOST}")
        told = self._desk.decisions(int(text))
        return json_reply({"decisions": [decision_to_json(one) for one in told]})


def at_the_leader(answer: _Answer) -> Handler:
    """Return a handler that redirects to the leader's sidecar where another one leads."""

    async def handle(_request: web.BaseRequest, target: Target) -> web.StreamResponse:
        try:
            return await answer(target)
        except LeaderElsewhere as error:
            location = error.sidecar_url.rstrip("/") + target.path_and_query
            raise Refused(307, str(error), {"Location": location}) from error

    return handle


def account_to_json(account: Account) -> dict[str, Any]:
    """Return an account as a JSON object; scores are fractions, 1.0 is a full broker."""
    told = account.explanation
    return {
        "subject": told.subject,
        "kind": told.kind,
        "leader": account.leader,
        "epoch": account.epoch,
        "atMs": account.at_ms,
        "lastRound": account.last_round,
        "lastRoundAtMs": account.last_round_at_ms,
        "owner": told.owner,
        "target": told.target,
        "msgsPerS": told.msgs_per_s,
        "bytesPerS": told.bytes_per_s,
        "bundles": told.bundles,
        "scores": {
            "own": told.score,
            "mean": told.mean,
            "highest": told.highest,
            "lowest": told.lowest,
        },
        "decisions": [decision_to_json(one) for one in told.decisions],
        "grounds": [_ground_to_json(one) for one in told.grounds],
        "candidates": [_candidate_to_json(one) for one in told.candidates],
        "inForce": in_force_to_json(account.in_force),
    }


def decision_to_json(decision: Decision) -> dict[str, Any]:
    """Return a decision as a JSON object, its code put into words."""
    return {
        "atMs": decision.at_ms,
        "epoch": decision.epoch,
        "round": decision.round,
        "subject": decision.subject,
        "outcome": decision.outcome.value,
        "code": decision.code.value,
        "meaning": sentence(decision.code),
        "takes": _takes(decision.code),
        "detail": decision.detail,
        "source": decision.source,
        "target": decision.target,
    }


def _ground_to_json(ground: Ground) -> dict[str, Any]:
    return {
        "about": ground.about,
        "reason": ground.reason.value,
        "meaning": sentence(ground.reason),
        "takes": _takes(ground.reason),
        "detail": ground.detail,
    }


def _candidate_to_json(candidate: Candidate) -> dict[str, Any]:
    refused = candidate.refused
    return {
        "broker": candidate.broker,
        "score": candidate.score,
        "scoreWith": candidate.score_with,
        "refused": None if refused is None else refused.value,
        "meaning": "" if refused is None else sentence(refused),
    }


def _takes(code: object) -> str:
    return REASONS[code].takes if isinstance(code, Reason) else ""
