"""The reference of scenario files, made from the declarations of their keys."""

from collections.abc import Iterator, Mapping
from textwrap import indent
from typing import Final

from pydantic_core import PydanticUndefined

from loadmanager.config.describe import as_toml, section_models
from loadmanager.config.forms import Section
from loadmanager.simulator.scenario.model import Scenario
from loadmanager.simulator.scenario.shapes import Key, Kinds, Several, Shape, Table, keys_of
from loadmanager.simulator.scores import SCORE_DOCS

EXAMPLE: Final = """\
title = "A broker joins"
duration_s = 3600

[[brokers]]
name = "small"
count = 3
cores = 4

[[brokers]]
name = "new"
count = 1
joined = false

[[load]]
namespace = "public/default"
bundles = 64
topics = 500
msgs_in_per_s = 90_000
skew = { kind = "zipf" }
patterns = [{ kind = "jitter" }]

[[events]]
kind = "join"
at_s = 600
brokers = ["new"]

[[expect]]
score = "moves"
least = 1
"""

_HEAD: Final = f"""\
# Scenario files

Made by `loadmanager config show-scenario-format` from the keys' own declarations; do not edit it.

A scenario is a TOML file, by itself or one of those that `loadmanager simulate --list` names.
`loadmanager config check-scenario FILE` reports every mistake at once, as `loadmanager simulate`
does: with file and line, the value there and what was expected.

{indent(EXAMPLE, "    ")}
Times are in seconds from the beginning. Rates count all topics of a load together.
"""

_TRACES: Final = """\
## Traces

A trace is a file of recorded topic rates: `trace = "rates.csv"` in a scenario, or
`loadmanager simulate SCENARIO --trace rates.csv`, which replays it instead of the scenario's load.
It ends in `.csv`, `.csv.gz` or `.parquet` (which needs `pip install 'loadmanager[simulator]'`), and
has these columns, in any order, and no others:

| column | what it is |
|---|---|
| `time_s` | when, in seconds; from any beginning, such as 1970 |
| `topic` | `persistent://tenant/namespace/topic`; a bare name is in `public/default` |
| `msg_rate_in`, `msg_rate_out` | messages per second, from producers and to consumers |
| `msg_throughput_in`, `msg_throughput_out` | bytes per second, likewise |

    time_s,topic,msg_rate_in
    0,persistent://shop/orders/new,1200
    0,persistent://shop/orders/paid,800
    300,persistent://shop/orders/new,1350.5
    300,persistent://shop/orders/paid,0

- Rows are in the order of their times. At each time there is one row for each topic that the file
  names anywhere: a topic without traffic has a row of zeros. A row that is missing is more often a
  fault of the recording than a topic that was idle, and the two would look alike.
- The first time in the file is the scenario's beginning. Rates hold until the next time, the last
  ones until the end.
- Of the four columns of traffic at least one is needed. Each other is the first of these that the
  file has: the other figure of its own direction, with messages of 1024 bytes; the same figure of
  the other direction (what comes in goes out once); the other figure of the other direction, with
  messages of 1024 bytes.
- A topic counts as one producer and one consumer. Its namespace has `trace_bundles` bundles of
  equal ranges, and the topic is in the one that its hash says.
- Figures are finite and not negative. A file has at most 50 million rows.
"""

_CONFIGURED: Final = ("report", "leader", "shedding", "placement", "planner")


def scenario_reference() -> str:
    """Return all keys of a scenario file, and the rules of traces, as Markdown."""
    return "\n".join([_HEAD, *_sections(), _TRACES])


def _sections() -> Iterator[str]:
    yield "## The whole\n"
    yield f"{_text(Scenario)}\n"
    yield from _table(Scenario)
    for name, key in keys_of(Scenario).items():
        if name in _CONFIGURED:
            continue
        yield from _described(name, key.shape)
    yield "## Sections of the configuration\n"
    links = ", ".join(f"[`[{name}]`](configuration.md#{name})" for name in _CONFIGURED)
    yield f"{links} are those of a sidecar's configuration, with the same defaults. The"
    yield "strategies and their settings are described in [strategies.md](strategies.md), and may"
    yield "be given by Pulsar's names. `--strategy` chooses the strategies (without it, all pairs)"
    yield "and `--mode` their mode: here, `strategy` names the one that `settings` are of, and"
    yield "`mode` has no effect. `--set` takes precedence. Brokers are of one"
    yield "version, so that `prefer_later_versions` changes nothing.\n"


def _described(name: str, shape: Shape) -> Iterator[str]:
    """Yield a section for a table, and those for the tables in it."""
    inner = shape.of if isinstance(shape, Several) else shape
    header = f"[[{name}]]" if isinstance(shape, Several) else f"[{name}]"
    if isinstance(inner, Table):
        yield f"## {header}\n"
        yield f"{_text(inner.model)}\n"
        yield from _table(inner.model)
        if name == "expect":
            yield from _scores()
        for key in keys_of(inner.model).values():
            yield from _described(f"{name}.{key.name}", key.shape)
    elif isinstance(inner, Kinds):
        yield f"## {header}\n"
        yield from _kinds(inner.models)


def _kinds(models: Mapping[str, type[Section]]) -> Iterator[str]:
    named: dict[type[Section], list[str]] = {}
    for kind, model in models.items():
        named.setdefault(model, []).append(kind)
    yield f"`kind` is one of {', '.join(f'`{kind}`' for kind in models)}.\n"
    for model, kinds in named.items():
        yield f"### {' and '.join(kinds)}\n"
        yield f"{_text(model)}\n"
        if len(keys_of(model)) > 1:
            yield from _table(model)


def _table(model: type[Section]) -> Iterator[str]:
    yield "| key | what it is | expected | default |"
    yield "|---|---|---|---|"
    for key in keys_of(model).values():
        if key.name != "kind":
            yield _row(key)
    yield ""


def _row(key: Key) -> str:
    cells = (f"`{key.name}`", key.field.description or "", key.expected, _default(key))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(key: Key) -> str:
    if key.required:
        return "required"
    default = key.field.get_default(call_default_factory=True)
    if isinstance(key.shape, Kinds):
        return f"`{as_toml(default.model_dump())}`"
    if isinstance(default, Section):
        return "as below" if key.name not in section_models() else "as in a configuration"
    if default is None or default is PydanticUndefined:
        return "unset"
    return f"`{as_toml(default)}`"


def _scores() -> Iterator[str]:
    yield "| score | unit | what it is |"
    yield "|---|---|---|"
    for doc in SCORE_DOCS:
        yield f"| `{doc.name}` | {doc.unit} | {doc.what} |"
    yield ""


def _text(model: type[Section]) -> str:
    """Return the description of the model, as Markdown."""
    return (model.__doc__ or "").strip().replace("\n    ", "\n").replace("``", "`")
