from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import indent
from typing import Final, get_args, get_origin

from annotated_types import MaxLen, MinLen
from markdown_tables import table
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from loadmanager.config.describe import as_toml, expected_of, section_models
from loadmanager.config.forms import Form, Section
from loadmanager.simulator.results import SCORE_DOCS
from loadmanager.simulator.scenario import Scenario

_FOLDER: Final = Path(__file__).parent
EXAMPLE: Final = (_FOLDER / "scenario_example.toml").read_text(encoding="utf-8")
"""A small scenario, shown in the reference."""

_CONFIGURED: Final = ("report", "leader", "shedding", "placement", "planner")


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a table. ``expected`` is worded to follow the word "expected".

    ``models`` are those of the table, or ``several`` tables, that it has below it: by their kinds,
    or by "" where there is one.
    """

    name: str
    field: FieldInfo
    models: Mapping[str, type[Section]]
    several: bool
    expected: str


@cache
def keys_of(model: type[Section]) -> Mapping[str, Key]:
    # The header of a table that stands in others has their names before its own.
    outermost = model is Scenario
    return {
        name: _key(name, field, name if outermost else "")
        for name, field in model.model_fields.items()
    }


def _key(name: str, field: FieldInfo, header: str) -> Key:
    several = get_origin(field.annotation) is tuple
    of = FieldInfo.from_annotation(get_args(field.annotation)[0]) if several else field
    models = _models(of)
    if models and several:
        expected = f"[[{header}]] tables" if header else "a list of tables, as [{ key = value }]"
    elif models:
        expected = f"a table, [{header}]" if header else "a table, as { key = value }"
    elif several and not any(isinstance(one, Form) for one in field.metadata):
        each = "a list" if get_origin(of.annotation) is tuple else expected_of(of)
        expected = f"a list{_lengths(field)} of which each is {each}"
    else:
        plain = not several and get_origin(field.annotation) is not Mapping
        expected = expected_of(field) + (_lengths(field) if plain else "")
    return Key(name, field, models, several, expected)


def _models(field: FieldInfo) -> Mapping[str, type[Section]]:
    if field.discriminator is not None:
        return {
            kind: model
            for model in get_args(field.annotation)
            for kind in get_args(model.model_fields["kind"].annotation)
        }
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
        return {"": field.annotation}
    return {}


def _lengths(field: FieldInfo) -> str:
    least = next((m.min_length for m in field.metadata if isinstance(m, MinLen)), 0)
    most = next((m.max_length for m in field.metadata if isinstance(m, MaxLen)), None)
    if most is not None:
        return f" of {least} to {most} characters"
    return " that is not empty," if least else ""


def scenario_reference() -> str:
    template = (_FOLDER / "scenario_format.md").read_text(encoding="utf-8")
    shown = template.replace("{example}\n", indent(EXAMPLE, "    "))
    return shown.replace("{sections}\n", "".join(f"{line}\n" for line in _sections()))


def _sections() -> Iterator[str]:
    yield "## The whole\n"
    yield f"{_text(Scenario)}\n"
    yield from _table(Scenario)
    for name, key in keys_of(Scenario).items():
        if name not in _CONFIGURED:
            yield from _described(name, key)
    yield "## Sections of the configuration\n"
    links = ", ".join(f"[`[{name}]`](configuration.md#{name})" for name in _CONFIGURED)
    yield f"{links} are those of a sidecar's configuration, with the same defaults. The"
    yield "strategies and their settings are described in [strategies.md](strategies.md), and may"
    yield "be given by Pulsar's names. `--strategy` chooses the strategies (without it, all pairs)"
    yield "and `--mode` their mode: here, `strategy` names the one that `settings` are of, and"
    yield "`mode` has no effect. `--set` takes precedence. Brokers are of one"
    yield "version, so that `prefer_later_versions` changes nothing.\n"


def _described(name: str, key: Key) -> Iterator[str]:
    if not key.models:
        return
    yield f"## [[{name}]]\n" if key.several else f"## [{name}]\n"
    model = key.models.get("")
    if model is None:
        yield from _kinds(key.models)
        return
    yield f"{_text(model)}\n"
    yield from _table(model)
    if name == "expect":
        docs = SCORE_DOCS.values()
        yield from table(
            ("score", "unit", "what it is"), ((f"`{doc.name}`", doc.unit, doc.what) for doc in docs)
        )
        yield ""
    for inner in keys_of(model).values():
        yield from _described(f"{name}.{inner.name}", inner)


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
    yield from table(
        ("key", "what it is", "expected", "default"),
        (
            (
                f"`{key.name}`",
                " ".join((key.field.description or "").split()),
                key.expected,
                _default(key),
            )
            for key in keys_of(model).values()
            if key.name != "kind"
        ),
    )
    yield ""


def _default(key: Key) -> str:
    if key.field.is_required():
        return "required"
    default = key.field.get_default(call_default_factory=True)
    if key.models and "" not in key.models and not key.several:
        return f"`{as_toml(default.model_dump())}`"
    if isinstance(default, Section):
        return "as below" if key.name not in section_models() else "as in a configuration"
    if default is None or default is PydanticUndefined:
        return "unset"
    return f"`{as_toml(default)}`"


def _text(model: type[Section]) -> str:
    return (model.__doc__ or "").strip().replace("\n    ", "\n").replace("``", "`")
