"""Who leads, from the election node alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.ids import BrokerId
from loadmanager.core.leadership import Incumbent, Standing, judge, successors

ME = Incumbent(BrokerId("b1:8080"), "run-2", session_id=22)


@pytest.mark.parametrize(
    ("incumbent", "standing"),
    [
        pytest.param(None, Standing.CAMPAIGN, id="nobody in office"),
        pytest.param(Incumbent(ME.broker, "run-2", 22), Standing.LEAD, id="our own"),
        pytest.param(Incumbent(BrokerId("b2:8080"), "run-9", 31), Standing.FOLLOW, id="another's"),
        pytest.param(Incumbent(ME.broker, "run-1", 21), Standing.CLEAR, id="of an earlier life"),
        pytest.param(Incumbent(ME.broker, "run-1", 22), Standing.CLEAR, id="not written by us"),
        pytest.param(Incumbent(None, "", 22), Standing.CLEAR, id="unreadable, of this session"),
        pytest.param(Incumbent(None, "", 31), Standing.FOLLOW, id="unreadable, of another session"),
    ],
)
def test_the_node_says_who_leads(incumbent: Incumbent | None, standing: Standing) -> None:
    assert judge(ME, incumbent, connected=True) is standing


brokers = st.sampled_from([ME.broker, BrokerId("b2:8080")])
incumbents = st.none() | st.builds(
    Incumbent, brokers, st.sampled_from(["run-1", "run-2"]), st.sampled_from([21, 22, 31])
)


@given(incumbent=incumbents)
def test_a_suspended_session_leaves_everything_in_doubt(incumbent: Incumbent | None) -> None:
    assert judge(ME, incumbent, connected=False) is Standing.DOUBT


@given(incumbent=incumbents)
def test_only_the_session_that_holds_the_node_leads(incumbent: Incumbent | None) -> None:
    leads = judge(ME, incumbent, connected=True) is Standing.LEAD
    assert not leads or (incumbent is not None and incumbent.session_id == ME.session_id)


def test_the_brokers_registered_longest_besides_the_leader_are_to_succeed_it() -> None:
    registered = {BrokerId(f"b{number}:8080"): 100 - number for number in range(5)}
    assert successors(registered, None) == {"b4:8080", "b3:8080"}
    assert successors(registered, BrokerId("b4:8080")) == {"b3:8080", "b2:8080"}
    assert successors({}, ME.broker) == frozenset()
