import statistics
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Final

from loadmanager.core.ids import BundleId
from loadmanager.core.load import HostUsage, ResourceUsage
from loadmanager.core.rates import six_digits

MOST_SAMPLES: Final = 12
"""Number of samples kept: one minute at the default interval of five seconds."""

_RESOURCES: Final = ("cpu", "memory", "bandwidth_in", "bandwidth_out")
_NO_BUNDLES: Final[AbstractSet[BundleId]] = frozenset()


@dataclass(frozen=True, slots=True)
class UsageSamples:
    """The last samples of a broker's host with the same ``bundles``, oldest first.

    They are cleared when the broker gains or loses a bundle: the resulting change of usage is
    not variation.
    """

    taken: tuple[HostUsage, ...] = ()
    bundles: AbstractSet[BundleId] = _NO_BUNDLES

    def after(self, usage: HostUsage, bundles: AbstractSet[BundleId]) -> "UsageSamples":
        former = self.taken if bundles == self.bundles else ()
        return UsageSamples((*former, usage)[-MOST_SAMPLES:], bundles)

    def last(self) -> HostUsage:
        varied: dict[str, Any] = {
            name: _varied([getattr(one, name) for one in self.taken]) for name in _RESOURCES
        }
        return replace(self.taken[-1], **varied)


def _varied(taken: list[ResourceUsage | None]) -> ResourceUsage | None:
    last = taken[-1]
    if last is None:
        return None
    usages = [one.usage for one in taken if one is not None and one.limit == last.limit]
    if len(usages) == 1:
        return last
    mean = statistics.fmean(usages)
    variance = statistics.variance(usages)
    return replace(last, mean=six_digits(mean), variance=six_digits(variance))
