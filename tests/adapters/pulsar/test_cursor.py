from hypothesis import given
from hypothesis import strategies as st

from tests.testbed.pulsar_protocol.cursor import Cursor

NUMBERS = st.integers(0, 30)


@given(st.lists(st.tuples(st.sampled_from(["one", "through", "reset"]), NUMBERS), max_size=25))
def test_a_cursor_knows_what_a_plain_set_would(steps: list[tuple[str, int]]) -> None:
    cursor, plain = Cursor(0), set[int]()
    for step, number in steps:
        if step == "one":
            cursor.ack(number)
            plain.add(number)
        elif step == "through":
            cursor.ack_through(number)
            plain |= set(range(number + 1))
        else:
            cursor.reset(number)
            plain = set(range(number))
        assert {one for one in range(32) if one in cursor} == plain
        assert cursor.acked_below == min(set(range(40)) - plain)
        beyond = {one for first, last in cursor.ranges(99) for one in range(first, last + 1)}
        assert beyond == {one for one in plain if one >= cursor.acked_below}


def test_no_more_runs_are_told_than_asked_for() -> None:
    cursor = Cursor(0, [2, 3, 5, 7, 8, 9, 11])
    assert list(cursor.ranges(3)) == [(2, 3), (5, 5), (7, 9)]
    assert list(cursor.ranges(9)) == [(2, 3), (5, 5), (7, 9), (11, 11)]
