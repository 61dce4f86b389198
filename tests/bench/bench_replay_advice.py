"""How often the replay's advice is right, where it is known what is best."""

from collections import Counter
from typing import Final

import pytest
from figures import emit
from planted_advice import cases, table, tried

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]
HOURS: Final = 9.0
SEEDS: Final = (1, 2, 3)


def test_what_is_advised_is_better_by_its_own_simulations() -> None:
    """Prints the table of docs/pipeline.md."""
    rows = {name: tried(played, SEEDS) for name, played in cases(HOURS).items()}
    told = Counter(one.outcome for each in rows.values() for one in each)
    emit("advice of replays", hours=HOURS, seeds=SEEDS, outcomes=dict(told))
    print(table(rows))
    assert told["better"] > 0
    assert told["worse"] <= 0.1 * told["better"]
