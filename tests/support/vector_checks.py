"""Every recorded decision of Pulsar, decided again and compared."""

import gzip
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from vector_bundles import (
    check_broker_load_data,
    check_bundle_boundaries,
    check_bundle_data_update,
    check_resource_usage,
    check_split_algorithm,
    check_splitter_task,
    check_time_average,
    check_top_k,
    check_topic_to_bundle,
)
from vector_inputs import Count, Json
from vector_strategies import (
    check_avg_shedder,
    check_ext_placement,
    check_placement,
    check_round_robin,
    check_shedder,
    check_transfer_shedder,
)

from loadmanager.core.placement import LeastLongTermMessageRate, LeastResourceUsageWithWeight
from loadmanager.core.shedding import OverloadShedder, ThresholdShedder, UniformLoadShedder

SUFFIX: Final = ".jsonl.gz"


class Differs(AssertionError):
    """A recorded decision is decided differently here."""


CHECKS: Final[Mapping[str, Callable[[Json, Count], None]]] = {
    "avg_shedder": check_avg_shedder,
    "broker_load_data": check_broker_load_data,
    "bundle_boundaries": check_bundle_boundaries,
    "bundle_data_update": check_bundle_data_update,
    "bundle_split_algorithm": check_split_algorithm,
    "bundle_splitter_task": check_splitter_task,
    "ext_least_resource_usage_with_weight": check_ext_placement,
    "least_long_term_message_rate": partial(check_placement, LeastLongTermMessageRate, ""),
    "least_resource_usage_with_weight": partial(
        check_placement, LeastResourceUsageWithWeight, "brokerAvgResourceUsageWithWeight"
    ),
    "overload_shedder": partial(check_shedder, OverloadShedder),
    "resource_usage": check_resource_usage,
    "round_robin_broker_selector": check_round_robin,
    "threshold_shedder": partial(check_shedder, ThresholdShedder),
    "time_average_broker_data": check_time_average,
    "top_k_bundles": check_top_k,
    "topic_to_bundle": check_topic_to_bundle,
    "transfer_shedder": check_transfer_shedder,
    "uniform_load_shedder": partial(check_shedder, UniformLoadShedder),
}
"""The check of each algorithm: a scenario, and the count to add to."""


def compare(path: Path) -> Count:
    """Compare every scenario of one file, and return how much that was.

    Raises:
        Differs: a decision is not Pulsar's; the first such ends the comparison.
    """
    check, count = CHECKS[path.name.removesuffix(SUFFIX)], Count()
    for line in gzip.decompress(path.read_bytes()).splitlines():
        scenario = json.loads(line)
        count.scenarios += 1
        count.rounds += len(scenario["rounds"])
        try:
            check(scenario, count)
        except AssertionError as failure:
            raise Differs(f"{scenario['id']} {scenario['tags']}: {failure}") from failure
    return count
