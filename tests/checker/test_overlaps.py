from dataclasses import replace
from itertools import combinations, product

from hypothesis import given, settings
from hypothesis import strategies as st

from loadmanager.core.ids import Namespace, bundle_id, namespace_of, range_of
from loadmanager.reference_broker.changes import EndReason, ServingInterval, overlaps

QUARTER = 0x40000000
BOUNDS = [0, QUARTER, 2 * QUARTER, 3 * QUARTER, 0xFFFFFFFF]


def interval(
    start_s: float,
    end_s: float,
    quarters: tuple[int, int] = (0, 4),
    incarnation: str = "i1",
    namespace: str = "t/n",
) -> ServingInterval:
    lower, upper = quarters
    return ServingInterval(
        broker=f"{incarnation}:8080",
        incarnation=incarnation,
        bundle=bundle_id(Namespace(namespace), BOUNDS[lower], BOUNDS[upper]),
        fencing_token=1,
        agent_epoch=1,
        start_s=start_s,
        end_s=end_s,
        why=EndReason.UNLOADED,
    )


def by_hand(intervals: list[ServingInterval]) -> set[frozenset[int]]:
    """Return the offending pairs by trying every second and every quarter of the circle."""
    found = set()
    for left, right in combinations(intervals, 2):
        if left.incarnation == right.incarnation:
            continue
        for second, quarter in product(range(20), range(4)):
            if serves(left, second, quarter) & serves(right, second, quarter):
                found.add(frozenset({left.fencing_token, right.fencing_token}))
    return found


def serves(one: ServingInterval, second: int, quarter: int) -> set[Namespace]:
    lower, upper = range_of(one.bundle)
    within = lower <= quarter * QUARTER < upper and one.start_s <= second < one.end_s
    return {namespace_of(one.bundle)} if within else set()


intervals = st.builds(
    lambda start, length, quarters, incarnation, namespace: interval(
        start, start + length, quarters, incarnation, namespace
    ),
    start=st.integers(0, 9),
    length=st.integers(0, 6),
    quarters=st.sampled_from([*combinations(range(5), 2)]),
    incarnation=st.sampled_from(["i1", "i2", "i3"]),
    namespace=st.sampled_from(["t/n", "t/m"]),
)


@settings(max_examples=150)
@given(served=st.lists(intervals, max_size=7))
def test_overlaps_are_exactly_those_found_by_hand(served: list[ServingInterval]) -> None:
    # Told apart by their place in the list: equal ones must be found as often as they are.
    named = [replace(one, fencing_token=place) for place, one in enumerate(served)]
    found = overlaps(named)
    pairs = [frozenset({one.first.fencing_token, one.second.fencing_token}) for one in found]
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == by_hand(named)
    for one in found:
        assert one.start_s == max(one.first.start_s, one.second.start_s)
        assert one.end_s == min(one.first.end_s, one.second.end_s)
