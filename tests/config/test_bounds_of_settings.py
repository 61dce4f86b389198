"""Every number that can be set has a least and a most."""

from collections.abc import Iterator
from typing import Any, get_args

from annotated_types import Ge, Gt, Le, Lt

from loadmanager.config.forms import Section
from loadmanager.config.model import Config
from loadmanager.core.filters import Filters
from loadmanager.core.placement import PLACEMENTS
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.report import ReportRules
from loadmanager.core.settings import groups_of, settings_of
from loadmanager.core.shedding import SHEDDERS


def numbers_of(section: type[Section], path: str = "") -> Iterator[tuple[str, list[Any]]]:
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from numbers_of(kind, name)
        elif {int, float} & (set(get_args(kind)) or {kind}):
            yield f"[{path}] {name}", field.metadata


def test_every_number_of_the_configuration_is_bounded_on_both_sides() -> None:
    found = dict(numbers_of(Config))
    assert len(found) > 50
    unbounded = [
        name
        for name, notes in found.items()
        if not any(isinstance(note, Ge | Gt) for note in notes)
        or not any(isinstance(note, Le | Lt) for note in notes)
    ]
    assert unbounded == []


def test_every_number_of_a_strategy_is_bounded_on_both_sides() -> None:
    kinds = {*SHEDDERS.values(), *PLACEMENTS.values(), PlannerSettings, Filters, ReportRules}
    checked = 0
    for outer in kinds:
        for kind in (outer, *groups_of(outer).values()):
            for setting in settings_of(kind):
                if setting.kind in {int, float}:
                    checked += 1
                    assert None not in {setting.least, setting.most}, f"{kind} {setting.name}"
    assert checked > 20
