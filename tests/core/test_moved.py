import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.cluster import Moved
from loadmanager.core.ids import BrokerId, BundleId

bundles = st.sampled_from([BundleId(f"t/n/{n}") for n in range(6)])
brokers = st.sampled_from([BrokerId("a:1"), BrokerId("b:1")])


@given(
    first=st.dictionaries(bundles, brokers, max_size=3),
    story=st.lists(st.tuples(st.integers(0, 20), bundles, brokers), max_size=20),
)
def test_each_value_stays_as_it_was_whatever_is_added_to_it_later(
    first: dict[BundleId, BrokerId], story: list[tuple[int, BundleId, BrokerId]]
) -> None:
    made = [(Moved.of(first), first)]
    for place, bundle, broker in story:
        former, plain = made[place % len(made)]
        made.append((former.adding(bundle, broker), {**plain, bundle: broker}))
    for moved, plain in made:
        assert moved == plain
        assert list(moved.items()) == list(plain.items())
        assert len(moved) == len(plain)
        for number in range(6):
            bundle = BundleId(f"t/n/{number}")
            assert moved.get(bundle) == plain.get(bundle)
            assert (bundle in moved) == (bundle in plain)


def test_what_another_value_added_is_not_in_this_one() -> None:
    first = Moved.of({})
    first.adding(BundleId("t/n/1"), BrokerId("a:1"))
    with pytest.raises(KeyError, match="t/n/1"):
        first[BundleId("t/n/1")]
    assert first.get(BundleId("t/n/1"), BrokerId("b:1")) == "b:1"
    assert Moved.of(first) is first
