from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import indent
from typing import Final

from pydantic_core import PydanticUndefined
from scenario_shapes import Key, Kinds, Several, Shape, Table, keys_of

from loadmanager.config.describe import as_toml, section_models
from loadmanager.config.forms import Section
from loadmanager.simulator.results import SCORE_DOCS
from loadmanager.simulator.scenario import Scenario

_FOLDER: Final = Path(__file__).parent
EXAMPLE: Final = (_FOLDER / "scenario_example.toml").read_text(encoding="utf-8")
"""A small scenario, shown in the reference."""

_CONFIGURED: Final = ("report", "leader", "shedding", "placement", "planner")


def scenario_reference() -> str:
    template = (_FOLDER / "scenario_format.md").read_text(encoding="utf-8")
    shown = template.replace("{example}\n", indent(EXAMPLE, "    "))
    return shown.replace("{sections}\n", "".join(f"{line}\n" for line in _sections()))


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
    cells = (
        f"`{key.name}`",
        " ".join((key.field.description or "").split()),
        key.expected,
        _default(key),
    )
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
    for doc in SCORE_DOCS.values():
        yield f"| `{doc.name}` | {doc.unit} | {doc.what} |"
    yield ""


def _text(model: type[Section]) -> str:
    return (model.__doc__ or "").strip().replace("\n    ", "\n").replace("``", "`")
