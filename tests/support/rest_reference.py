"""docs/rest-api.md, from the declared operations."""

from collections.abc import Iterator, Sequence
from typing import Final

from loadmanager.adapters.http.lookups import REDIRECT_PREFIX
from loadmanager.adapters.http.operations import Operation, all_replies, by_tag

_INTRODUCTION: Final = """\
# REST API

Made from the declared operations; do not edit it. A running sidecar serves the same as a page at
`/docs`, and as an OpenAPI document with all parameters and bodies at `/openapi.json`.

Paths marked P are Apache Pulsar's, with its methods, bodies and statuses; the others are ours.
Only the leader answers those marked L: every other sidecar redirects to it by 307, with the same
path and query. The role is the required right of the caller (docs/security.md); each includes the
ones before it: `none`, `lookup`, `read`, `admin`. Without configuration requests from the sidecar's
own host have all rights, others `lookup`, and more with a token.

Every error is `{"reason": ...}`. Beside the statuses in the tables, every operation may answer:

| status | when |
|---|---|
| 400 | a parameter or the body is malformed, or is given twice with different values |
| 401, 403 | no valid credentials, or not the role; or a request from a web page (docs/security.md)
|
| 404 | the path does not exist |
| 405 | the path has other methods, see `Allow`; `HEAD` goes with `GET`, `OPTIONS` lists them |
| 412 | a name in the path is not valid |
| 413, 414, 415, 431 | body, URL or a header is too long; the body is not `application/json` |
| 503 | no leader, no ZooKeeper or no broker is available; `Retry-After` says when to retry |

Not available, unlike at Pulsar's brokers: `broker-stats` other than the load report and
topics (metrics are at `/metrics`), `brokers/shutdown` (a sidecar that is stopped drains its broker
first), the deletion of a single bundle's topics, and everything about messages, schemas, functions
and tenants. A tenant is created with its first namespace.
"""

_UNDECLARED: Final = {
    "lookup": f"| `ANY {REDIRECT_PREFIX}/{{...}}/{{domain}}/{{tenant}}/{{namespace}}/{{topic}}` "
    "|  | lookup | Send a request, by any method, to the broker that serves a topic. | 307: "
    "`Location` is the rest of the path and the query at the owner's URL; 404: The path does not "
    "end in a topic, or the namespace does not exist; 412: The broker has no HTTP URL |"
}
"""Rows that OpenAPI cannot express, any method and a path of any length, by their tag."""


def rest_reference(operations: Sequence[Operation]) -> str:
    lines = [_INTRODUCTION]
    for tag, group in by_tag(operations).items():
        lines += [f"## {tag.capitalize()}", "", "| operation | | role | what | statuses |"]
        lines += ["|---|---|---|---|---|", *(_row(one) for one in group)]
        lines += [*filter(None, [_UNDECLARED.get(tag)]), ""]
    return "\n".join(lines)


def _row(one: Operation) -> str:
    marks = " ".join(["P"] * (not one.ours) + ["L"] * one.leader)
    text = "; ".join(_statuses(one))
    return f"| `{one.method} {one.path}` | {marks} | {one.role} | {one.summary} | {text} |"


def _statuses(one: Operation) -> Iterator[str]:
    declared = {reply.status for reply in one.replies}
    for reply in all_replies(one):
        if reply.status in declared:
            yield f"{reply.status}: {reply.meaning.removesuffix('.')}"
