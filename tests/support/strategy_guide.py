import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import EnumType
from textwrap import wrap
from typing import Any, Final

from markdown_tables import table

from loadmanager.config.sections import SheddingSettings
from loadmanager.config.strategies import default_planner, own_placement
from loadmanager.core.filters import Filters
from loadmanager.core.placement import PLACEMENTS
from loadmanager.core.plan import Cause, Reason
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.scores import ResourceWeights
from loadmanager.core.settings import Setting, groups_of, settings_of
from loadmanager.core.shedding import SHEDDERS

_KINDS: Final[Mapping[type, str]] = {float: "number", int: "whole number", bool: "true or false"}
_INTRODUCTION: Final = f"""\
# Strategy guide

Made from the strategies' own declarations; do not edit it.

Choose a **shedder**, which says which bundles should leave which brokers, and a **placement**,
which says which broker takes a bundle, by our short name or by Pulsar's class name, with or without
its package. Unset the shedder is `{SheddingSettings().strategy}`; unset the placement is `joint`
beside `joint`, which takes no other, and `AvgShedder` beside any other:

    [shedding]
    strategy = "AvgShedder"
    [shedding.settings]
    high_hits = 3

    [placement]
    strategy = "LeastLongTermMessageRate"

`loadmanager attach --strategy NAME` takes a shedder of this page
([pulsar.md](pulsar.md#other-strategies)); `loadmanager decide` tries any of it on a snapshot:

    loadmanager decide --snapshot cluster.json --shedder threshold --set threshold=0.05

Settings are written under our key or Pulsar's, then in Pulsar's unit, which the tables name where
it differs. Fractions are of a broker's own capacity, 1.0 is full. In `safe` mode, the default, the
planner carries out what a strategy offers only if it makes things better, and within budgets; in
`parity` mode it does what Pulsar would do ([differences](accidents.md)).
"""
_PLANNER_KEYS: Final = """\
`[planner]`, `[shedding]` and `[leader]` of the configuration set most of them under keys of their
own (`deploy/loadmanager.toml`); `loadmanager decide --set` takes these."""
_FILTER_KEYS: Final = """\
`[placement]` and `[leader]` of the configuration set them under keys of their own;
`loadmanager decide --set` takes these."""
_WHERE_REASONS_ARE: Final = """\
Why a broker, a bundle or a whole round was left alone: shown by `loadmanager explain` and
`loadmanager decide`, and counted by the metric of refusals."""


def strategy_guide(chapters: str = "") -> str:
    """Return the guide as Markdown, with ``chapters`` of others after its introduction."""
    shedding = SheddingSettings().strategy
    placement = own_placement(SHEDDERS[shedding])
    usual = default_planner()
    lines = [
        _INTRODUCTION,
        chapters,
        "## Shedders",
        *_strategies(SHEDDERS, shedding),
        "## Placements",
        *_strategies(PLACEMENTS, placement),
        "## Weights",
        *_text(ResourceWeights),
        "Strategies that look at usage have these settings too, as `weights_cpu` and so on.",
        "",
        *_table(ResourceWeights, "weights_"),
        "## Planner",
        *_text(PlannerSettings),
        _PLANNER_KEYS,
        "",
        *_table(PlannerSettings, in_force=usual.settings),
        "## Filters",
        *_text(Filters),
        _FILTER_KEYS,
        "",
        *_table(Filters, in_force=usual.filters),
        "## Causes",
        "",
        "Why a bundle moves.",
        "",
        *table(("cause", "what it says"), ((f"`{one.value}`", one.meaning) for one in Cause)),
        "",
        "## Reasons",
        "",
        _WHERE_REASONS_ARE,
        "",
        *table(
            ("reason", "what it says", "what it would take"),
            ((f"`{one.value}`", one.meaning, one.takes) for one in Reason),
        ),
    ]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _strategies(known: Mapping[str, type], default: str) -> Iterator[str]:
    for kind in dict.fromkeys(known.values()):
        names = [name for name, one in known.items() if one is kind]
        yield ""
        yield f"### {names[0]}"
        yield ""
        standard = " The default." if known[default] is kind else ""
        said = f"Names: {', '.join(f'`{name}`' for name in names)}.{standard}"
        yield from wrap(said, 100, break_on_hyphens=False)
        yield from _text(kind)
        yield from _table(kind)
        if "weights" in groups_of(kind):
            yield "And the [weights](#weights)."
            yield ""


def _text(kind: type) -> Iterator[str]:
    yield ""
    yield _markdown(inspect.getdoc(kind) or "")
    yield ""


def _table(kind: type, prefix: str = "", *, in_force: object = None) -> Iterator[str]:
    """Yield a table of settings; their defaults are what is ``in_force`` in a sidecar, if given."""
    settings = settings_of(kind)
    if in_force is not None:
        settings = tuple(replace(one, default=getattr(in_force, one.name)) for one in settings)
    if not settings:
        yield "It has no settings."
        yield ""
        return
    yield from table(
        ("key", "what it does", "unit", "range", "default", "Pulsar's key"),
        (_cells(setting, prefix) for setting in settings),
    )
    yield ""


def _cells(setting: Setting, prefix: str) -> tuple[str, ...]:
    doc = setting.doc
    unit = doc.unit or _KINDS.get(setting.kind, "")
    key = f"`{doc.pulsar_key}`{_conversion(doc.pulsar_divisor)}" if doc.pulsar_key else ""
    return (
        f"`{prefix}{setting.name}`",
        _markdown(doc.effect),
        unit or ("one of them" if isinstance(setting.kind, EnumType) else "list of texts"),
        _range(setting),
        f"`{_shown(setting.default)}`",
        key,
    )


def _range(setting: Setting) -> str:
    if isinstance(setting.kind, EnumType):
        choices: list[Any] = list(setting.kind)
        return ", ".join(f"`{choice}`" for choice in choices)
    if setting.least is None or setting.most is None:
        return ""
    return f"{_shown(setting.least)} to {_shown(setting.most)}"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(int(value)) if value == int(value) and abs(value) < 1e15 else f"{value:g}"
    if isinstance(value, frozenset):
        return str(sorted(value))
    return str(value)


def _conversion(divisor: float) -> str:
    if divisor == 1.0:
        return ""
    if divisor > 1.0:
        return f", {divisor:g} times as much"
    return f", where 1 is {round(1.0 / divisor)} here"


def _markdown(text: str) -> str:
    return re.sub(r"``([^`]+)``", r"`\1`", text)
