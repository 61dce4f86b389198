"""What users build on, one line for each item, as the declarations in the code have it.

Each surface is a file in tests/compatibility. ``make compatibility`` renews them; it refuses to
remove or change a line unless ``BREAKING=yes`` says that this is meant (docs/upgrade.md).
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry
from surface import surface
from znode_samples import node_lines

from loadmanager.adapters.http.describing import openapi_document
from loadmanager.config.describe import as_toml, describe
from loadmanager.core.history.schema import ENVELOPE, KINDS, VERSION, Columns, Field
from loadmanager.core.placement import PLACEMENTS
from loadmanager.core.settings import settings_of
from loadmanager.core.shedding import SHEDDERS
from loadmanager.telemetry.metrics import AttachMetrics, HistoryMetrics, Metrics

FOLDER: Final = Path(__file__).parents[1] / "compatibility"
RENEW: Final = "make compatibility"
_CHOICE: Final = "one of "
Lines = Iterator[tuple[str, str]]


def configuration() -> Lines:
    for known in describe():
        name = f"{known.section}.{known.key}"
        default = "unset" if known.default is None else as_toml(known.default)
        yield name, f"{known.kind}, {'required' if known.required else f'default {default}'}"
        if known.expected.startswith(_CHOICE):
            for choice in known.expected.removeprefix(_CHOICE).split(", "):
                yield f"{name} = {choice}", "accepted"
    for section, strategies in (("shedding", SHEDDERS), ("placement", PLACEMENTS)):
        for strategy, kind in strategies.items():
            yield f'{section}.strategy = "{strategy}"', "accepted"
            for one in settings_of(kind):
                where = f'{section}.settings.{one.name} of "{strategy}"'
                yield where, f"{one.kind.__name__}, default {as_toml(one.default)}"


def rest() -> Lines:
    """Yield each operation, its parameters, body and replies but for refusals, and all models."""
    document = openapi_document(surface(), "")
    for path, operations in document["paths"].items():
        for method, told in operations.items():
            name = f"{method.upper()} {path}"
            yield name, f"role {told['x-role']}"
            for one in told["parameters"]:
                needed = "required" if one["required"] else _default(one["schema"])
                yield from _typed(f"{name} {one['in']}.{one['name']}", one["schema"], needed)
            body = told.get("requestBody", {})
            for kind, content in body.get("content", {}).items():
                needed = "required" if body["required"] else "optional"
                yield f"{name} body", f"{kind} {_type(content['schema'])}, {needed}"
            served = {
                status: reply for status, reply in told["responses"].items() if status < "400"
            }
        for status, reply in served.items():
            content = reply.get("content", {})
            kinds = (f"{kind} {_type(one['schema'])}" for kind, one in content.items())
            yield f"{name} {status}", ", ".join(kinds) or "no body"
    for name, model in document["components"]["schemas"].items():
        for choice in model.get("enum", ()):
            yield f"{name} = {choice}", "value"
        for field, schema in model.get("properties", {}).items():
            needed = "always there" if field in model.get("required", ()) else _default(schema)
            yield from _typed(f"{name}.{field}", schema, needed)


def _typed(name: str, schema: Mapping[str, Any], needed: str) -> Lines:
    yield name, f"{_type(schema)}, {needed}"
    for choice in schema.get("enum", schema.get("items", {}).get("enum", ())):
        yield f"{name} = {choice}", "value"


def _default(schema: Mapping[str, Any]) -> str:
    return f"default {as_toml(schema['default'])}" if "default" in schema else "optional"


def _type(schema: Mapping[str, Any]) -> str:
    """Return the type of a schema in a word; a model by its name."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(_type(one) for one in schema[several])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    inner = schema.get("additionalProperties")
    if schema.get("type") == "object" and isinstance(inner, Mapping):
        return f"map of {_type(inner)}"
    return str(schema.get("type", "any"))


def metrics() -> Lines:
    registry = CollectorRegistry()
    for kind in (AttachMetrics, Metrics, HistoryMetrics):
        kind(registry)
    declared = {
        family.name: getattr(collector, "_labelnames", None)
        for collector in registry._collector_to_names
        for family in collector.collect()
    }
    for family in registry.collect():
        labels = declared[family.name]
        if labels is None:  # a collector that makes its samples when it is asked
            labels = dict.fromkeys(label for one in family.samples for label in one.labels)
        text = ", ".join(label for label in labels if label not in {"le", "quantile"})
        yield family.name, f"{family.type} {{{text}}}"


def history() -> Lines:
    yield "version", str(VERSION)
    for field in ENVELOPE:
        yield from _history_field("every line", field)
    for kind in KINDS.values():
        yield kind.name, f"in {kind.stream}"
        for one in kind.fields:
            if isinstance(one, Columns):
                yield f"{kind.name}.{one.name}", "columns"
                for inner in one.fields:
                    yield from _history_field(f"{kind.name}.{one.name}", inner)
            else:
                yield from _history_field(kind.name, one)


def _history_field(where: str, field: Field) -> Lines:
    listed, null = "list of " * field.listed, " or null" * (field.nullable or field.added)
    yield f"{where}.{field.name}", f"{listed}{field.type}{null}"


SURFACES: Final[Mapping[str, Callable[[], Lines]]] = {
    "configuration": configuration,
    "rest": rest,
    "metrics": metrics,
    "znodes": node_lines,
    "history": history,
}


def current(name: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for item, text in SURFACES[name]():
        if found.setdefault(item, text) != text:
            message = f"{name}: {item} is {found[item]} and {text}; expected each item once"
            raise ValueError(message)
    return found


def promised(name: str, folder: Path = FOLDER) -> dict[str, str]:
    file = folder / f"{name}.txt"
    return parsed(file.read_text("utf-8")) if file.exists() else {}


def parsed(text: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in text.splitlines())


def breaks(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return what is removed, and then what is changed."""
    return [f"removed {item} ({old[item]})" for item in old if item not in new] + [
        f"changed {item} from {old[item]} to {new[item]}"
        for item in old
        if new.get(item, old[item]) != old[item]
    ]


def added(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return [f"added {item} ({new[item]})" for item in new if item not in old]


def renew(folder: Path, *, breaking: bool) -> str:
    """Write all files as the code is; return why not if that would break users."""
    now = {name: current(name) for name in SURFACES}
    found = [
        f"  {name}: {one}" for name in SURFACES for one in breaks(promised(name, folder), now[name])
    ]
    if found and not breaking:
        listed = "\n".join(found)
        return f"this breaks users:\n{listed}\nif it is meant: {RENEW} BREAKING=yes"
    for name, items in now.items():
        text = "".join(f"{item}: {told}\n" for item, told in sorted(items.items()))
        (folder / f"{name}.txt").write_text(text, "utf-8")
    return ""


if __name__ == "__main__":
    sys.exit(renew(FOLDER, breaking=os.environ.get("BREAKING") == "yes") or 0)
