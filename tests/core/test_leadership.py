"""Who leads, from the election node alone."""

from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.ids import BrokerId
from loadmanager.core.leadership import Candidate, Incumbent, Standing, judge, successors

ME = Candidate(BrokerId("b1:8080"), "run-2", session_id=22)


def test_nobody_in_office_calls_for_a_campaign() -> None:
    assert judge(ME, None, connected=True) is Standing.CAMPAIGN


def test_our_own_node_of_this_session_means_to_lead() -> None:
    assert judge(ME, Incumbent(ME.broker, "run-2", 22), connected=True) is Standing.LEAD


def test_another_brokers_node_means_to_follow() -> None:
    other = Incumbent(BrokerId("b2:8080"), "run-9", 31)
    assert judge(ME, other, connected=True) is Standing.FOLLOW


def test_the_node_of_an_earlier_life_is_cleared_not_believed() -> None:
    assert judge(ME, Incumbent(ME.broker, "run-1", 21), connected=True) is Standing.CLEAR


def test_a_node_of_this_session_that_we_did_not_write_is_cleared() -> None:
    assert judge(ME, Incumbent(ME.broker, "run-1", 22), connected=True) is Standing.CLEAR


def test_a_node_that_cannot_be_read_is_cleared_by_its_own_session_alone() -> None:
    assert judge(ME, Incumbent(None, "", 22), connected=True) is Standing.CLEAR
    assert judge(ME, Incumbent(None, "", 31), connected=True) is Standing.FOLLOW


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
