"""Isolation, anti-affinity and failure domains of a scenario: who gets what, and the bound."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scenario_texts import SOUND, loaded, told
from simulated_worlds import BUSY, PLAIN, Stepped, broker, run, scenario

LOAD = {
    "bundles": 8, "topics": 16, "over": "bundles", "msgs_in_per_s": 4_000.0, "fan_out": 0.0,
    "message_bytes": 20_000.0,
}  # fmt: skip
"""Bundles that are 0.4 of such a broker together."""
KEPT = [{"name": "few", "namespaces": ["kept/.*"], "primary": ["b-[12]"]}]


@pytest.mark.parametrize(
    "pair", ["threshold+least_long_term_message_rate", "uniform+least_long_term_message_rate"]
)
def test_no_bundle_goes_where_isolation_does_not_let_it(pair: str) -> None:
    load = LOAD | {"namespace": "kept/here", "placed_on": ["b-1"], "msgs_in_per_s": 9_000.0}
    fields: dict[str, Any] = {
        "brokers": BUSY, "load": load, "step_s": 10.0, "duration_s": 2400.0,
    }  # fmt: skip
    free = {move.target for move in run(scenario(**fields), pair).moves}
    kept = {move.target for move in run(scenario(isolation=KEPT, **fields), pair).moves}
    assert free >= {broker("b-3"), broker("b-4")}
    assert kept == {broker("b-2")}


def test_bundles_begin_where_isolation_lets_them() -> None:
    loads = [LOAD | {"namespace": "kept/here"}, LOAD | {"namespace": "free/there"}]
    world = Stepped(scenario(brokers=BUSY, load=loads, isolation=KEPT))
    assert world.owners() == ["b-1", "b-2"] * 4 + ["b-3", "b-4"] * 4


def test_the_bound_is_that_of_what_isolation_allows() -> None:
    load = LOAD | {"namespace": "kept/here"}
    free = Stepped(scenario(brokers=BUSY, load=load, hidden=PLAIN))
    kept = Stepped(scenario(brokers=BUSY, load=load, hidden=PLAIN, isolation=KEPT))
    assert free.world.bound() == pytest.approx(0.1)
    assert kept.world.bound() == pytest.approx(0.2)
    growing = PLAIN | {"cpu_growth": 0.5}
    grown = Stepped(scenario(brokers=BUSY, load=load, hidden=growing, isolation=KEPT))
    assert grown.world.bound() == pytest.approx(0.2 * 1.1)


def test_namespaces_of_one_group_are_placed_on_different_brokers() -> None:
    one = {"bundles": 1, "topics": 1, "placed": "unowned"}
    loads = [
        LOAD | one | {"namespace": f"team/{number}", "anti_affinity_group": "apart"}
        for number in range(4)
    ]
    fields: dict[str, Any] = {"brokers": BUSY, "step_s": 5.0, "duration_s": 120.0}
    owned = run(scenario(load=loads, **fields)).timeline.bundles[-1]
    assert owned.tolist() == [1, 1, 1, 1]


def test_groups_are_spread_over_failure_domains_first() -> None:
    racks = [BUSY[0] | {"name": name, "count": 2, "failure_domain": name} for name in ("r1", "r2")]
    one = {"bundles": 1, "topics": 1, "placed": "unowned", "anti_affinity_group": "apart"}
    loads = [LOAD | one | {"namespace": f"team/{number}"} for number in range(2)]
    fields: dict[str, Any] = {"step_s": 5.0, "duration_s": 120.0}
    spread = {"failure_domains": True}
    owned = run(scenario(brokers=racks, load=loads, placement=spread, **fields)).timeline.bundles
    assert np.add.reduceat(owned[-1], [0, 2]).tolist() == [1, 1]


def test_a_policy_of_a_file_is_checked(tmp_path: Path) -> None:
    policy = '\n[[isolation]]\nname = "p"\nnamespaces = ["a/("]\nprimary = []\n'
    faults = told(tmp_path, SOUND + policy)
    assert faults[0].startswith(
        'isolation[0].namespaces[0] = "a/("; expected: RE2 does not support'
    )
    assert faults[1].startswith("isolation[0].primary = []; expected it to have at least 1 item")
    assert len(faults) == 2
    sound = loaded(tmp_path, SOUND + policy.replace("a/(", "a/.*").replace("[]", '["small-1"]'))
    assert sound.isolation[0].primary == ("small-1",)
