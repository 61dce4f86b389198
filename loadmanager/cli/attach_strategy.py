import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from loadmanager.attach.discovery import addresses
from loadmanager.attach.host_figures import Hosts
from loadmanager.attach.planner_strategy import PlannerStrategy
from loadmanager.attach.sampled_loads import SampledLoads
from loadmanager.attach.strategy import GreedyRate, Strategy
from loadmanager.config import Config, PlacementSettings, SheddingSettings, load_config
from loadmanager.config.planning import planner_of
from loadmanager.config.strategies import go_together, not_together
from loadmanager.core.even_rates import GREEDY_RATE
from loadmanager.core.placement import PLACEMENTS
from loadmanager.core.planner import Planner
from loadmanager.core.shedding import SHEDDERS, UniformLoadShedder

_NO_BROKER: Final = "attach:1"


def strategy_of(options: Mapping[str, Any]) -> Strategy:
    config = _config(options["config"])
    shedding, placement = config.shedding, config.placement
    name = options["strategy"]
    if name is None:
        name = shedding.strategy if "strategy" in shedding.model_fields_set else GREEDY_RATE
    if name == GREEDY_RATE:
        if options["placement"] is not None:
            raise click.UsageError("--placement is given with a --strategy other than greedy_rate")
        return GreedyRate()
    shedding = _named(shedding, name, SHEDDERS, "strategy")
    if options["placement"] is not None:
        placement = _named(placement, options["placement"], PLACEMENTS, "placement")
    _check_together(shedding, placement)
    planner = planner_of(shedding, placement, config.planner, config.leader)
    return PlannerStrategy(
        name=name,
        planner=_of_attach(planner),
        loads=SampledLoads(addresses(options["url"]), planner.weights),
        hosts=_hosts(planner, options["cores"]),
        acts=options["balance"],
    )


def _config(path: Path | None) -> Config:
    # A candidate has no broker; what it is called here is never seen.
    if path is None:
        return Config.model_validate({"broker": {"id": _NO_BROKER}})
    return load_config(path, {**os.environ, "LOADMANAGER_BROKER__ID": _NO_BROKER})


def _named(settings: Any, name: str, known: Mapping[str, type], option: str) -> Any:
    """Return a section with another strategy; the settings of the one it had go with that."""
    if name not in known:
        short = sorted({one for one in known if one.islower()})
        every = [GREEDY_RATE, *short] if option == "strategy" else short
        raise click.UsageError(f"--{option} {name}; expected one of {', '.join(every)}")
    same = known[name] is known.get(settings.strategy)
    kept = settings.settings if same else {}
    return settings.model_copy(update={"strategy": name, "settings": kept})


def _check_together(shedding: SheddingSettings, placement: PlacementSettings) -> None:
    shedder, named = SHEDDERS[shedding.strategy], placement.strategy
    if named is not None and not go_together(shedder, PLACEMENTS[named]):
        text = f"strategy {shedding.strategy} with placement {named}"
        raise click.UsageError(f"{text}; expected as placement {not_together(shedder)}")


def _of_attach(planner: Planner) -> Planner:
    """Return the planner without what attach decides itself: when brokers come and go."""
    return replace(planner, settings=replace(planner.settings, settle_s=0.0))


def _hosts(planner: Planner, cores: float | None) -> Hosts | None:
    """Return how hosts are measured; `UniformLoadShedder` alone uses only traffic."""
    return None if isinstance(planner.shedder, UniformLoadShedder) else Hosts(cores)
