import asyncio
import json
from collections.abc import Mapping

import pytest
from stories import served, story

from loadmanager.common.runtime_settings import RuntimeSettings
from loadmanager.config import Config, load_config
from loadmanager.config.describe import describe
from loadmanager.config.strategies import MANY
from loadmanager.core import znodes
from tests.testbed.faults.agent import Agent
from tests.testbed.faults.cluster import Cluster

DYNAMIC = tuple(f"{known.section}.{known.key}" for known in describe() if known.dynamic)
OTHERWISE: Mapping[str, str] = {
    "report.max_interval_s": "50",
    "report.change_fraction": "0.3",
    "report.change_points": "0.3",
    "report.jitter_fraction": "0.3",
    "leader.round_interval_s": "77",
    "leader.report_stale_s": "777",
    "shedding.enabled": "false",
    "shedding.strategy": "ThresholdShedder",
    "shedding.observe": "true",
    "shedding.excluded_namespaces": '["public/default"]',
    "shedding.shadows": '["joint", {"strategy": "avg", "settings": {"high_hits": 7}}]',
    "shedding.settings": '{"high_hits": 7}',
    "placement.strategy": "LeastLongTermMessageRate",
    "placement.settings": '{"difference": 0.7}',
    "placement.prefer_later_versions": "true",
    "placement.failure_domains": "true",
    "placement.even_bundles": "true",
    "planner.mode": "parity",
    "planner.margin_fraction": "0.7",
    "planner.max_stale_fraction": "0.7",
    "planner.max_lost_fraction": "0.7",
    "split.enabled": "false",
    "split.algorithm": "topic_count_equally_divide",
    "lookup.retry_after_s": "9",
    "log.level": "debug",
}
"""Settings for which 7 is refused, or no other value than without."""


@pytest.fixture
def config() -> Config:
    # The default takes no other placement.
    given = ["shedding.strategy=AvgShedder", "placement.strategy=LeastResourceUsageWithWeight"]
    return load_config(None, {"LOADMANAGER_BROKER__ID": "b1:8080"}, given)


@pytest.mark.parametrize("name", DYNAMIC)
def test_every_dynamic_setting_takes_effect_and_is_taken_back(name: str, config: Config) -> None:
    settings = RuntimeSettings(config)
    before, planners = repr(settings.now), repr((settings.now.planner, settings.now.shadows))
    told: list[Config] = []
    settings.follow(told.append)
    settings.changed({name: OTHERWISE.get(name, "7")})
    section, _, key = name.partition(".")
    assert getattr(getattr(told[-1], section), key) != getattr(getattr(config, section), key)
    if section in {"shedding", "placement", "planner"}:
        assert repr((settings.now.planner, settings.now.shadows)) != planners
    settings.changed({})
    assert (repr(settings.now), told[-1]) == (before, config)


def test_a_budget_set_to_its_default_binds_a_strategy_that_is_free_without() -> None:
    own = load_config(None, {"LOADMANAGER_BROKER__ID": "b1:8080"}, ["shedding.strategy=joint"])
    settings = RuntimeSettings(own)
    settings.changed({"planner.max_moves_per_round": "16"})
    assert settings.now.planner.settings.moves_per_round == 16
    settings.changed({"leader.settle_s": "7"})
    assert settings.now.planner.settings.moves_per_round == MANY


async def configured(cluster: Cluster, **values: str) -> None:
    content = json.dumps({name.replace("__", "."): value for name, value in values.items()})
    await cluster.write(znodes.CONFIGURATION, content.encode())


def shedder(agent: Agent) -> str:
    leader_term = agent.app.leading.leader_term
    assert leader_term is not None
    return type(leader_term.look().planner.shedder).__name__


@story()
async def test_another_strategy_and_rhythm_are_used_from_the_next_round(cluster: Cluster) -> None:
    assert shedder(cluster.leader) == "ThresholdShedder"
    boundaries = await served(cluster, 6)
    places = {bundle: cluster.server(bundle) for bundle in boundaries.bundles}
    await configured(
        cluster, shedding__strategy="AvgShedder", loadBalancerSheddingIntervalMinutes="1"
    )
    await cluster.until(lambda: shedder(cluster.leader) == "AvgShedder")
    await cluster.settled(boundaries.bundles)
    assert {bundle: cluster.server(bundle) for bundle in boundaries.bundles} == places
    before = rounds_of(cluster.leader)
    await cluster.until(lambda: rounds_of(cluster.leader) > before + 1, within_s=125.0)
    assert rounds_of(cluster.leader) <= before + 2


@story()
async def test_a_leader_that_waits_for_an_hour_follows_within_seconds(cluster: Cluster) -> None:
    await configured(cluster, leader__round_interval_s="3600")
    settings = cluster.leader.app.settings
    await cluster.until(lambda: settings.now.config.leader.round_interval_s == 3600.0)
    await asyncio.sleep(30.0)
    before = rounds_of(cluster.leader)
    await asyncio.sleep(30.0)
    assert rounds_of(cluster.leader) == before
    await configured(cluster, leader__round_interval_s="2")
    await cluster.until(lambda: rounds_of(cluster.leader) > before, within_s=10.0)


def rounds_of(agent: Agent) -> float:
    leader_term = agent.app.leading.leader_term
    assert leader_term is not None
    return leader_term.decision_log.rounds


@story()
async def test_every_sidecar_follows_what_can_be_read_and_takes_it_back(cluster: Cluster) -> None:
    tunings = [agent.app.settings for agent in cluster.living]

    async def waits(wait_s: float, **values: str) -> None:
        await configured(cluster, **values)
        await cluster.until(lambda: all(one.now.config.lookup.wait_s == wait_s for one in tunings))

    await waits(1.5, lookup__wait_s="1.5", ownership__drain_deadline_s="7")
    assert {one.now.config.ownership.drain_deadline_s for one in tunings} == {7.0}
    await waits(2.0, leader__round_interval_s="often", lookup__wait_s="2")
    await waits(3.0, leader__round_interval_s="often", lookup__wait_s="3")
    told = cluster.warnings("configuration.key.refused")
    assert len(told) == len(tunings)  # Once each.
    assert {one["name"] for one in told} == {"leader.round_interval_s"}
    assert all("expected a number from 0.1 to 3600" in one["error"] for one in told)
    await cluster.write(znodes.CONFIGURATION, b"{malformed")
    await cluster.until(lambda: cluster.warnings("znode.content.refused"))
    assert {one.now.config.lookup.wait_s for one in tunings} == {3.0}
    await waits(5.0)


@story()
async def test_a_later_leader_has_the_settings_from_its_first_round(cluster: Cluster) -> None:
    await configured(cluster, shedding__strategy="TransferShedder")
    await cluster.until(lambda: shedder(cluster.leader) == "TransferShedder")
    former = cluster.leader
    await former.leave()
    await cluster.until(lambda: any(agent.app.leading.leader_term for agent in cluster.living))
    assert cluster.leader is not former
    assert shedder(cluster.leader) == "TransferShedder"
