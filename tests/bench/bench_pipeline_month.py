"""A simulated month whose hidden costs the commands of the pipeline find out from its history."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from cost_simulation import scenario, true_costs
from figures import emit
from small_history import write_history

from loadmanager.core.cost.document import RATES, CostDocument, decode_costs
from loadmanager.core.scores import RESOURCES
from loadmanager.pipeline.jobs import COST_MODEL
from loadmanager.simulator.scenario.brokers import BrokerClass

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]

DAYS: Final = 30.0
SEED: Final = 4
MATTERS: Final = 0.05
"""The least part of what typical traffic costs that a term needs to be told apart."""

MOST_OFF: Final = 0.10


def test_a_month_of_history_gives_its_hidden_costs_away(tmp_path: Path) -> None:
    played = scenario(days=DAYS)
    write_history(tmp_path / "history", played, seed=SEED)
    command = [sys.executable, "-m", "loadmanager", "pipeline", "ingest", "costs"]
    began_s = time.perf_counter()
    subprocess.run(
        [*command, f"--history={tmp_path / 'history'}", f"--out={tmp_path / 'tables'}"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    took_s = time.perf_counter() - began_s
    model = tmp_path / "tables" / COST_MODEL
    document = decode_costs(str(model), model.read_bytes())
    assert document.classes.keys() == {group.name for group in played.brokers}
    held: list[bool] = []
    off: list[float] = []
    for group in played.brokers:
        for inside, error in found(document, group):
            held.append(inside)
            off.extend(error)
    emit(
        "costs_of_a_month_of_history",
        days=DAYS,
        ingest_and_costs_s=took_s,
        intervals=len(held),
        held=np.mean(held),
        terms_that_matter=len(off),
        off_median=np.median(off),
        off_most=max(off),
    )
    assert len(off) >= 20
    assert np.median(off) < MOST_OFF / 5
    assert np.mean(np.array(off) < MOST_OFF) > 0.95
    assert np.mean(held) >= 0.8


def found(document: CostDocument, group: BrokerClass) -> list[tuple[bool, list[float]]]:
    """Return for each true cost if its interval holds it, and how far off it is if it matters."""
    costs = document.classes[group.name]
    typical = np.array([costs.typical[rate] for rate in RATES])
    told: list[tuple[bool, list[float]]] = []
    for resource, truth in zip(RESOURCES, true_costs(group), strict=True):
        terms = costs.resources.get(resource, {})
        for rate, hidden, amount in zip(RATES, truth, truth * typical, strict=True):
            if hidden > 0:
                term = terms[rate]
                matters = amount >= MATTERS * float(truth @ typical)
                error = [abs(term.value / hidden - 1.0)] if matters else []
                told.append((term.low <= hidden <= term.high, error))
    return told
