"""Mean and variance of what a broker's host used lately."""

from collections.abc import Iterable

import pytest

from loadmanager.core.ids import BundleId
from loadmanager.core.load import HostUsage, ResourceUsage
from loadmanager.core.usage_samples import MOST_SAMPLES, UsageSamples

A, B = BundleId("t/n/0x00000010_0x00000020"), BundleId("t/n/0x00000020_0x00000030")


def sample(cpu: float | None, limit: float = 400.0) -> HostUsage:
    """Return a sample of a host with so much CPU used, None for a resource without a rate."""
    used = None if cpu is None else ResourceUsage(cpu, limit)
    return HostUsage(window_s=5.0, cpu=used, memory=ResourceUsage(3.0, 9.0))


def after(samples: Iterable[HostUsage]) -> UsageSamples:
    found = UsageSamples()
    for one in samples:
        found = found.after(one, {A})
    return found


def test_mean_and_variance_are_those_of_the_samples() -> None:
    last = after(sample(cpu) for cpu in (100.0, 200.0, 150.0)).last()
    assert last.cpu == ResourceUsage(150.0, 400.0, mean=150.0, variance=2500.0)
    assert last.memory == ResourceUsage(3.0, 9.0, mean=3.0, variance=0.0)
    assert (last.bandwidth_in, last.window_s) == (None, 5.0)


@pytest.mark.parametrize(
    ("samples", "cpu"),
    [
        pytest.param(
            [sample(1.0), sample(2.0), sample(5.0)],
            ResourceUsage(5.0, 400.0, mean=2.66667, variance=4.33333),
            id="six digits, as rates have",
        ),
        pytest.param([sample(None)], None, id="no rate"),
        pytest.param([sample(None), sample(7.0)], ResourceUsage(7.0, 400.0), id="a single one"),
        pytest.param(
            [sample(900.0), *[sample(100.0)] * MOST_SAMPLES],
            ResourceUsage(100.0, 400.0, mean=100.0, variance=0.0),
            id="only the last count",
        ),
        pytest.param(
            [sample(100.0), sample(100.0), sample(300.0, 800.0), sample(302.0, 800.0)],
            ResourceUsage(302.0, 800.0, mean=301.0, variance=2.0),
            id="those of another limit do not count",
        ),
    ],
)
def test_usage_after(samples: list[HostUsage], cpu: ResourceUsage | None) -> None:
    assert after(samples).last().cpu == cpu


@pytest.mark.parametrize("bundles", [{A, B}, set()])
def test_samples_begin_anew_when_a_bundle_comes_or_goes(bundles: set[BundleId]) -> None:
    moved = after([sample(100.0), sample(110.0)]).after(sample(300.0), bundles)
    assert moved.last().cpu == ResourceUsage(300.0, 400.0)
    again = moved.after(sample(310.0), bundles).last()
    assert again.cpu == ResourceUsage(310.0, 400.0, mean=305.0, variance=50.0)
