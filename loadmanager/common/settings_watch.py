from collections.abc import Callable, Mapping

import structlog

from loadmanager.common.runtime_settings import Rhythm, RuntimeSettings, RuntimeValues, SplitPolicy
from loadmanager.config import Config
from loadmanager.config.dynamic import override
from loadmanager.config.planning import planner_of, shadows_of, split_limits_of, split_rules_of
from loadmanager.core.report import ReportRules

log = structlog.get_logger()


class SettingsWatch:
    """Turns this sidecar's configuration and the cluster's settings over it into `RuntimeSettings`.

    Settings that this sidecar cannot take, alone or with its own, are left out and reported
    in the log, once for each time they change.
    """

    def __init__(self, config: Config, settings: RuntimeSettings) -> None:
        self._config = config
        self._settings = settings
        self._faults: Mapping[str, str] = {}
        self._followers: list[Callable[[Config], None]] = []
        self._last = config

    def follow(self, follower: Callable[[Config], None]) -> None:
        self._followers.append(follower)

    def changed(self, values: Mapping[str, str]) -> None:
        result = override(self._config, values)
        for name, why in result.faults.items():
            if self._faults.get(name) != why:
                log.warning("configuration.key.refused", name=name, error=why)
        self._faults = result.faults
        if _same(result.config, self._last):
            return
        self._last = result.config
        self._settings.now = tuned_by(result.config)
        for follower in self._followers:
            follower(result.config)
        log.info("configuration.values.applied", names=sorted(values.keys() - result.faults.keys()))


def _same(one: Config, other: Config) -> bool:
    """Return whether two configurations are equivalent.

    A budget set to its default also limits strategies that are unlimited if it is unset.
    """
    return one == other and one.planner.model_fields_set == other.planner.model_fields_set


def tuned_by(config: Config) -> RuntimeValues:
    """Raises `ConfigError`: a strategy or one of its settings does not exist."""
    report, split, leader = config.report, config.split, config.leader
    return RuntimeValues(
        planner=planner_of(config.shedding, config.placement, config.planner, leader),
        shadows=shadows_of(config.shedding, config.placement, config.planner, leader),
        rhythm=Rhythm(
            tick_interval_s=leader.tick_interval_s,
            round_interval_s=leader.round_interval_s,
            return_wait_s=leader.return_wait_s,
        ),
        split_policy=SplitPolicy(
            enabled=split.enabled,
            rules=split_rules_of(split, config.planner),
            algorithm=split.algorithm,
            most_per_round=split.max_splits_per_round,
        ),
        split_limits=split_limits_of(split, config.planner),
        report_rules=ReportRules(
            min_interval_s=report.min_interval_s,
            max_interval_s=report.max_interval_s,
            change_fraction=report.change_fraction,
            change_points=report.change_points,
            jitter_fraction=report.jitter_fraction,
        ),
        sample_interval_s=report.sample_interval_s,
        lookup_wait_s=config.lookup.wait_s,
        drain_deadline_s=config.ownership.drain_deadline_s,
    )
