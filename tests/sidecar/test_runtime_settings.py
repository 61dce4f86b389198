from collections.abc import Mapping

import pytest

from loadmanager.common.runtime_settings import RuntimeSettings, wait_out
from loadmanager.common.settings_watch import SettingsWatch, tuned_by
from loadmanager.config import Config, load_config
from loadmanager.config.describe import describe
from loadmanager.config.planning import MANY

DYNAMIC = tuple(f"{known.section}.{known.key}" for known in describe() if known.dynamic)
OF_THE_DOOR_AND_THE_LOG = {
    "lookup.max_concurrent": "7",
    "lookup.retry_after_s": "9",
    "log.level": "debug",
}
OTHERWISE: Mapping[str, str] = {
    "report.sample_interval_s": "7",
    "report.min_interval_s": "7",
    "report.max_interval_s": "50",
    "report.change_fraction": "0.3",
    "report.change_points": "0.3",
    "report.jitter_fraction": "0.3",
    "leader.round_interval_s": "77",
    "leader.tick_interval_s": "7",
    "leader.settle_s": "7",
    "leader.return_wait_s": "7",
    "leader.report_stale_s": "777",
    "shedding.enabled": "false",
    "shedding.strategy": "ThresholdShedder",
    "shedding.observe": "true",
    "shedding.grace_period_s": "7",
    "shedding.excluded_namespaces": '["public/default"]',
    "shedding.shadows": '["joint", {"strategy": "avg", "settings": {"high_hits": 7}}]',
    "shedding.settings": '{"high_hits": 7}',
    "placement.strategy": "LeastLongTermMessageRate",
    "placement.settings": '{"difference": 0.7}',
    "placement.max_topics_per_broker": "7",
    "placement.prefer_later_versions": "true",
    "placement.failure_domains": "true",
    "placement.even_bundles": "true",
    "planner.mode": "parity",
    "planner.margin_fraction": "0.7",
    "planner.max_moves_per_round": "7",
    "planner.max_moves_per_hour": "7",
    "planner.max_in_flight_per_broker": "7",
    "planner.max_bytes_per_s_per_round": "7",
    "planner.max_placements_per_round": "7",
    "planner.max_drain_moves_per_round": "7",
    "planner.max_stale_fraction": "0.7",
    "planner.max_lost_fraction": "0.7",
    "planner.lost_window_s": "7",
    "split.enabled": "false",
    "split.algorithm": "topic_count_equally_divide",
    "split.max_topics": "7",
    "split.max_sessions": "7",
    "split.max_msgs_per_s": "7",
    "split.max_mib_per_s": "7",
    "split.difference_percent": "7",
    "split.max_bundles_per_namespace": "7",
    "split.max_splits_per_round": "7",
    "ownership.drain_deadline_s": "7",
    "lookup.wait_s": "7",
    **OF_THE_DOOR_AND_THE_LOG,
}


@pytest.fixture
def config() -> Config:
    # The default takes no other placement.
    given = ["shedding.strategy=AvgShedder", "placement.strategy=LeastResourceUsageWithWeight"]
    return load_config(None, {"LOADMANAGER_BROKER__ID": "b1:8080"}, given)


@pytest.mark.parametrize("name", DYNAMIC)
def test_every_dynamic_setting_takes_effect_and_is_taken_back(name: str, config: Config) -> None:
    settings = RuntimeSettings(tuned_by(config))
    before = repr(settings.now)
    retuning = SettingsWatch(config, settings)
    told: list[Config] = []
    retuning.follow(told.append)
    retuning.changed({name: OTHERWISE[name]})
    section, _, key = name.partition(".")
    assert getattr(getattr(told[-1], section), key) != getattr(getattr(config, section), key)
    assert (repr(settings.now) != before) is (name not in OF_THE_DOOR_AND_THE_LOG)
    retuning.changed({})
    assert (repr(settings.now), told[-1]) == (before, config)


def test_a_budget_set_to_its_default_binds_a_strategy_that_is_free_without() -> None:
    own = load_config(None, {"LOADMANAGER_BROKER__ID": "b1:8080"}, ["shedding.strategy=joint"])
    settings = RuntimeSettings(tuned_by(own))
    retuning = SettingsWatch(own, settings)
    retuning.changed({"planner.max_moves_per_round": "16"})
    assert settings.now.planner.settings.moves_per_round == 16
    retuning.changed({"leader.settle_s": "7"})
    assert settings.now.planner.settings.moves_per_round == MANY


class Naps:
    """A clock that only naps move on."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.naps: list[float] = []
        self.called_back = False

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return round(self.now_s * 1000)

    async def sleep(self, delay_s: float) -> None:
        self.now_s += delay_s
        self.naps.append(delay_s)

    async def nap(self, delay_s: float) -> bool:
        await self.sleep(delay_s)
        return self.called_back


@pytest.mark.parametrize("interval_s", [0.05, 2.0, 4.5, 60.0])
async def test_a_wait_takes_as_long_as_it_is_told(interval_s: float) -> None:
    clock = Naps()
    await wait_out(clock, lambda: interval_s, clock.nap)
    assert clock.now_s == pytest.approx(1000.0 + interval_s)


async def test_a_wait_ends_soon_when_it_is_shortened_and_at_once_when_it_is_called_off() -> None:
    clock = Naps()
    await wait_out(clock, lambda: 3600.0 if clock.now_s < 1010.0 else 5.0, clock.nap)
    assert clock.now_s < 1013.0
    clock = Naps()
    clock.called_back = True
    await wait_out(clock, lambda: 3600.0, clock.nap)
    assert len(clock.naps) == 1
