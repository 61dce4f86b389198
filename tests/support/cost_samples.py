"""Documents of learned costs, small and good enough to be decided by."""

from collections.abc import Mapping

from loadmanager.core.cost.document import ClassCosts, CostDocument, Quality, Term
from loadmanager.core.ids import BrokerId

GOOD = Quality(mape=0.05, coverage=0.9, held_out_minutes=600)


def learned(cpu_per_msg: Mapping[str, float], *, cluster: str = "east") -> CostDocument:
    """Return what one message in costs each class, in percent of one core."""
    return CostDocument(
        cluster=cluster,
        made_at_ms=1_781_481_600_000,
        since_ms=1_780_876_800_000,
        until_ms=1_781_481_600_000,
        classes={
            name: ClassCosts(
                resources={"cpu": {"msgs_in_per_s": Term(cost, 0.9 * cost, 1.1 * cost)}},
                brokers=(BrokerId(f"{name or 'any'}:8080"),),
                minutes=10_080,
                typical={"msgs_in_per_s": 20_000.0},
            )
            for name, cost in cpu_per_msg.items()
        },
        backgrounds={BrokerId("b1:8080"): {"cpu": Term(1.0, 0.5, 1.5)}},
        quality={name: {"cpu": GOOD} for name in cpu_per_msg},
    )
