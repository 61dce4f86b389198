import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.ids import parse_broker
from loadmanager.core.load import BrokerUrls, LoadReport, ResourceUsage
from loadmanager.core.scores import (
    ResourceWeights,
    max_usage,
    percent_usage,
    report_usage,
    weighted_max_usage,
    weighted_max_with_memory,
)

rows = st.lists(st.floats(-10, 1e9), min_size=5, max_size=5).map(np.array)


@given(rows.map(np.abs), rows)
def test_a_percentage_is_that_of_32_bit_division(usage: np.ndarray, limit: np.ndarray) -> None:
    got = percent_usage(usage, limit)
    for used, most, percent in zip(usage, limit, got, strict=True):
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            want = np.float32(used) / np.float32(most) * np.float32(100) if most > 0 else 0.0
        assert percent == want or (np.isnan(percent) and np.isnan(want))


def test_heap_counts_only_in_the_extensible_score() -> None:
    usage, limit = np.array([10.0, 99.0, 20.0, 30.0, 40.0]), np.full(5, 100.0)
    weights = ResourceWeights(memory=1.0, direct_memory=1.0)
    assert float(max_usage(usage, limit)) == np.float32(0.4)
    assert float(weighted_max_usage(usage, limit, weights)) == float(np.float32(0.4) * 100) / 100
    assert float(weighted_max_with_memory(usage, limit, weights)) == 0.99


def test_without_weights_nothing_counts() -> None:
    none = ResourceWeights(cpu=0.0, bandwidth_in=0.0, bandwidth_out=0.0)
    assert float(weighted_max_usage(np.full(5, 90.0), np.full(5, 100.0), none)) == 0.0


def test_an_unknown_resource_is_nothing_of_nothing() -> None:
    report = LoadReport(
        broker=parse_broker("b1:8080"),
        urls=BrokerUrls(http_url="http://b1:8080"),
        sidecar_url="",
        started_at_ms=0,
        reported_at_ms=0,
        memory=ResourceUsage(1.0, 2.0),
    )
    usages, limits = report_usage(report)
    assert (usages, limits) == ([0.0, 1.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0, 0.0])
