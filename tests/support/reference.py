"""Pages of docs/ that are made from declarations in the code; renew them with `make reference`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import click
from configuration_reference import configuration_reference
from scenario_reference import scenario_reference
from surface import surface

from loadmanager.adapters.http.lookups import REDIRECT_PREFIX
from loadmanager.adapters.http.operations import Operation, all_replies
from loadmanager.cli import main
from loadmanager.cli.options import SectionedGroup
from loadmanager.core.bounds import TIMES_END_MS, TOTAL
from loadmanager.core.history.schema import ENVELOPE, KINDS, VERSION, Columns, Field, Kind, Type
from loadmanager.pipeline.contract import described

_INTRODUCTION: Final = """\
# REST API

Made from the declared operations; do not edit it. A running sidecar serves them as an OpenAPI
document, with all parameters and bodies, at `/openapi.json`.

Paths marked P are Apache Pulsar's, with its methods, bodies and statuses; the others are ours.
Only the leader answers those marked L: every other sidecar redirects to it by 307, with the same
path and query. The role is the required right of the caller (docs/security.md); each includes the
ones before it: `none`, `lookup`, `read`, `admin`. Without configuration requests from the sidecar's
own host have all rights, others `lookup`, and more with a token. `attach --page` answers its own
host those of draining and balancing (not `observe`), `overview` and `tasks`.

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
    groups: dict[str, list[Operation]] = {}
    for one in operations:
        groups.setdefault(one.tag, []).append(one)
    for tag, group in groups.items():
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


_HELP: Final = ["-h", "--help"]
_HEAD = """\
# Command line

Made from the commands' own declarations; do not edit it.

Commands that ask a sidecar find it by `--url`, else `LOADMANAGER_URL`, else a profile (`--profile`,
`LOADMANAGER_PROFILE`, else `default`) in `profiles.toml` of `~/.config/loadmanager`, else on
`http://127.0.0.1:7750`:

    [default]
    url = "https://broker-1.example.org:7750"
    token_file = "~/.config/loadmanager/token.jwt"
    ca_file = "/etc/ssl/brokers.pem"

Any sidecar will do; requests that only the leader can answer are forwarded to it. `--json` prints
machine-readable output. Exit codes: 0 for success, 2 for invalid input or a name that does not
exist, 1 if the sidecar refuses, fails or cannot be reached. Every
command has `-h`, and `loadmanager --version` prints the version.

`eval "$(_LOADMANAGER_COMPLETE=bash_source loadmanager)"` (`zsh_source`, `fish_source`) lets a shell
complete commands and options.
"""


def command_reference(root: SectionedGroup) -> str:
    context = click.Context(
        root,
        info_name="loadmanager",
        terminal_width=96,
        max_content_width=96,
        help_option_names=_HELP,
    )
    parts = [_HEAD]
    for title, names in root.in_sections().items():
        parts.append(f"## {title}\n")
        for name in names:
            command = root.commands[name]
            for leaf, inner in _leaves(command, _below(context, command, name)):
                parts.append(f"### {inner.command_path}\n\n{_shown(leaf, inner)}\n")
    return "\n".join(parts)


def _shown(command: click.Command, context: click.Context) -> str:
    usage, *rest = command.get_help(context).split("\n\n")
    text = "\n\n".join([usage.removeprefix("Usage: "), *rest])
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())


def _leaves(
    command: click.Command, context: click.Context
) -> Iterator[tuple[click.Command, click.Context]]:
    if not isinstance(command, click.Group):
        yield command, context
        return
    for name in sorted(command.commands):
        inner = command.commands[name]
        yield from _leaves(inner, _below(context, inner, name))


def _below(context: click.Context, command: click.Command, name: str) -> click.Context:
    return click.Context(
        command,
        context,
        info_name=name,
        terminal_width=context.terminal_width,
        max_content_width=context.max_content_width,
    )


_JSON: Final = {
    Type.TEXT: "text",
    Type.COUNT: "whole number ≥ 0",
    Type.TIME: "time",
    Type.RATE: "number ≥ 0",
    Type.FLAG: "true or false",
}
_BEGINNING: Final = f"""# History

Sidecars with a `[history]` section (and `loadmanager demo --history DIR`, `loadmanager simulate
--history DIR`, `loadmanager attach --history DIR`) record every load report and every decision, for
the pipeline or for any program that reads JSON lines. The version of the format is **{VERSION}**;
the operator guide describes how to enable it.

## Files

    DIR/date=2026-11-21/hour=22/reports-broker-1_8080-5f2a90c1d07be344-000000000001.jsonl.gz
    DIR/date=2026-11-21/hour=22/rounds-broker-1_8080-5f2a90c1d07be344-000000000001.jsonl.gz
    DIR/date=2026-11-21/hour=22/_rounds-broker-1_8080-5f2a90c1d07be344-000000000731.jsonl.gz

- `date` and `hour` are those of the lines' `at_ms` in UTC; a file holds lines of one hour only. If
  a clock is set back, a new file in the earlier hour begins.
- Two streams: `reports`, which agents publish of their own brokers, and `rounds`, what a leader
  observed and decided. A sidecar that never leads writes no `rounds` files.
- The rest of the name is the writer's broker id (any character other than a letter, digit, dot or
  dash is replaced by `_`), its `instance` and the `seq` of the first line. No two files have the
  same name, so any number of writers may share a directory.
- A file whose name begins with `_` is being written. Spark and Hadoop ignore such files. When it
  is complete it is synced to disk and renamed; a file without `_` never changes. The sidecar of the
  same broker completes the files of a killed writer when it starts: every flushed line is kept, an
  incomplete one is cut off.
- Each file is gzip in several members, one for each flush. Any gzip reader, Spark's included, reads
  them as one stream. A crash, or a power cut after a flush, loses no line of an earlier member.

## Lines

Each line is one JSON object in UTF-8, with the fields of the envelope first, in this order:

"""
_RULES: Final = f"""
- Every field of a kind is always present. Nullable fields are marked; lists may be empty. Fields
  that are not listed here may be added under the same version: readers ignore them. The means and
  variances of a report were added later: lines of 0.1 lack them, and readers treat them as null.
  `schema` grows when a reader of the former version would misread something.
- **columns** are an object of lists of equal length: the first items of all lists belong together,
  and so on. In Spark: `inline(arrays_zip(bundles.bundle, ...))`, after comparing the lengths.
- Numbers are finite: a number is at most {TOTAL.most:g}, a whole number at most 2^60; sums over
  all bundles of a cluster stay below that. Writing and reading preserves all 64 bits.
- A **time** is a whole number of milliseconds since 1970 in UTC, on the clock of the process that
  wrote it: 0 or more, and less than {TIMES_END_MS} (the year 2100). A line with a later time is
  malformed: no valid day or minute can be computed from it.
- Rates are means over `window_s`. CPU is in percent of one core (400 are four cores), memory in
  MiB, bandwidth in kbit/s, as in Pulsar's load reports. A limit of 0 means that the resource was
  not measured.
- `seq` has no gap within (`writer`, `instance`, stream). A gap means a missing file
  (retention deletes the oldest first) or a malformed line; a repeated `seq` means a copied line.
  Lines that the writer itself dropped are reported by a `lost_reports` or
  `lost_rounds` line, and use no `seq`.
- Order by `seq`, not by `at_ms`: wall clocks jump.
- A load report is identified by `broker` and `reported_at_ms`.

## What a replay needs

A `round` with `base` true can be replayed by itself: it has the brokers as the leader saw them,
orders under way, the strategies' `memory` and the `constraints`, and the `bundles` lines of the
same `epoch` and `round` before it have the owner of each bundle and all averages. From there on,
every `tick` lists the reports that were processed, by their `reported_at_ms`, and whether one
sample of every listed bundle was added to all averages (`tick` of a round is the number of ticks
before its decision). From these follow the views of the other rounds, with the same averages as
the leader's own. (Simulations write no ticks.) Base rounds are the first round of a term, the
first one after a change of settings or constraints, and every `base_every_rounds`-th.

## Kinds
"""


def history_reference() -> str:
    """Return ``docs/history-format.md``."""
    parts = [_BEGINNING, *_table(ENVELOPE), _RULES]
    for kind in KINDS.values():
        parts += _kind(kind)
    return "".join(parts)


def _kind(kind: Kind) -> Iterator[str]:
    yield f"\n### `{kind.name}` ({kind.stream.value})\n\n{kind.meaning}\n\n"
    yield from _table(kind.fields)


def _table(fields: Iterable[Field | Columns]) -> Iterator[str]:
    yield "| field | form | description |\n|---|---|---|\n"
    for known in fields:
        if isinstance(known, Columns):
            yield f"| `{known.name}` | columns | {known.meaning} |\n"
            for column in known.fields:
                yield f"| `{known.name}.{column.name}` | {_form(column, column=True)} | "
                yield f"{column.meaning} |\n"
        else:
            yield f"| `{known.name}` | {_form(known)} | {known.meaning} |\n"


def _form(known: Field, *, column: bool = False) -> str:
    form = _JSON[known.type] + (" or null" if known.nullable else "")
    return f"list of {form}" if known.listed or column else form


DOCS: Final = Path(__file__).parents[2] / "docs"
PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "command-line.md": lambda: command_reference(main),
    "configuration.md": configuration_reference,
    "history-format.md": history_reference,
    "pipeline-tables.md": described,
    "rest-api.md": lambda: rest_reference(surface()),
    "scenario-format.md": scenario_reference,
}

if __name__ == "__main__":
    for name, made in PAGES.items():
        (DOCS / name).write_text(made(), encoding="utf-8")
