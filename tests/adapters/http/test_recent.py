import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.adapters.http.lookups import Recent

Moves = list[tuple[str, int]]
MOVES = st.lists(
    st.tuples(st.sampled_from(["put", "get", "drop"]), st.integers(0, 20)), max_size=200
)


@given(moves=MOVES, max_entries=st.integers(2, 12))
def test_it_never_holds_more_than_allowed_nor_an_old_value(moves: Moves, max_entries: int) -> None:
    recent: Recent[int, int] = Recent(max_entries)
    latest: dict[int, int] = {}
    for turn, (what, key) in enumerate(moves):
        if what == "put":
            recent.put(key, turn)
            latest[key] = turn
        elif what == "drop":
            recent.drop(key)
            latest.pop(key, None)
        else:
            assert recent.get(key) in {latest.get(key), None}
        assert len(recent) <= max_entries
        assert what == "get" or recent.get(key) == latest.get(key), "the newest is not crowded out"


@pytest.mark.parametrize("max_entries", [2, 8, 9])
def test_what_is_asked_for_again_and_again_stays(max_entries: int) -> None:
    recent: Recent[str, int] = Recent(max_entries)
    recent.put("kept", 0)
    for number in range(100):
        assert recent.get("kept") == 0
        recent.put(str(number), number)
