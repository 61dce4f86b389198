from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from loadmanager.core.plan import Reason, Refusal
from loadmanager.ports.overview import BrokerUse, RefusalCount, ResourceUse

MOST_BROKERS: Final = 200
MOST_TASKS: Final = 60
MOST_DECISIONS: Final = 60
MOST_MISSING: Final = 50
_MOST_REFUSALS: Final = 12


def scarcest_first(brokers: Iterable[BrokerUse]) -> list[BrokerUse]:
    """Return brokers, fullest first; brokers of unknown usage are sorted by traffic."""
    return sorted(
        brokers, key=lambda one: (-(one.largest_fraction or 0.0), -one.bytes_per_s, one.broker)
    )


def resources_of(brokers: Iterable[BrokerUse]) -> list[ResourceUse]:
    uses: dict[str, list[tuple[float, BrokerUse]]] = {}
    for one in brokers:
        for resource, fraction in one.uses.items():
            uses.setdefault(resource, []).append((fraction, one))
    found = []
    for resource, every in uses.items():
        highest, broker = max(every, key=lambda use: use[0])
        mean = sum(fraction for fraction, _ in every) / len(every)
        found.append(
            ResourceUse(
                resource=resource,
                mean_fraction=mean,
                highest_fraction=highest,
                broker=broker.broker,
            )
        )
    return sorted(found, key=lambda one: -one.highest_fraction)


def most_refused(refusals: Iterable[Refusal]) -> Sequence[RefusalCount]:
    counts: Counter[Reason] = Counter()
    examples: dict[Reason, Refusal] = {}
    for one in refusals:
        counts[one.reason] += 1
        examples.setdefault(one.reason, one)
    return [
        RefusalCount(
            reason=reason,
            count=count,
            subject=examples[reason].subject,
            detail=examples[reason].detail,
        )
        for reason, count in counts.most_common(_MOST_REFUSALS)
    ]
