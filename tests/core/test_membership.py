"""Who leads, which agent goes on, until when, and what becomes of brokers that are sick or gone."""

from dataclasses import replace
from functools import reduce

import pytest

from loadmanager.core.absences import TRY_AGAIN_S, AbsenceRules, Absences, Drains
from loadmanager.core.errors import MalformedContent
from loadmanager.core.health import Health, HealthRules, after, may_be_drained
from loadmanager.core.ids import BrokerId, parse_bundle
from loadmanager.core.leadership import (
    MOST_TAKE_OVERS,
    SOON_MS,
    Contender,
    Rival,
    Standing,
    Verdict,
    judge,
    judge_rivals,
    successors,
    take_overs,
)
from loadmanager.core.lease import (
    CLOCK_DRIFT_FRACTION,
    Heartbeats,
    latest_end_s,
    longest_lease_fraction,
    report_interval_s,
)
from loadmanager.core.wire.records import AgentRecord, decode_agent, encode_agent

ME = Contender(BrokerId("b1:8080"), "run-2", session_id=22)


@pytest.mark.parametrize(
    ("incumbent", "standing"),
    [
        pytest.param(None, Standing.CAMPAIGN, id="nobody in office"),
        pytest.param(Contender(ME.broker, "run-2", 22), Standing.LEAD, id="our own"),
        pytest.param(Contender(BrokerId("b2:8080"), "run-9", 31), Standing.FOLLOW, id="another's"),
        pytest.param(Contender(ME.broker, "run-1", 21), Standing.CLEAR, id="of an earlier life"),
        pytest.param(Contender(ME.broker, "run-1", 22), Standing.CLEAR, id="not written by us"),
        pytest.param(Contender(ME.broker, "run-2", 31), Standing.CLEAR, id="of another session"),
        pytest.param(Contender(None, "", 22), Standing.CLEAR, id="unreadable, of this session"),
        pytest.param(Contender(None, "", 31), Standing.FOLLOW, id="unreadable, of another session"),
    ],
)
def test_the_node_says_who_leads(incumbent: Contender | None, standing: Standing) -> None:
    assert judge(ME, incumbent, connected=True) is standing
    assert judge(ME, incumbent, connected=False) is Standing.DOUBT


def test_the_brokers_registered_longest_besides_the_leader_are_to_succeed_it() -> None:
    registered = {BrokerId(f"b{number}:8080"): 100 - number for number in range(5)}
    assert successors(registered, None) == {"b4:8080", "b3:8080"}
    assert successors(registered, BrokerId("b4:8080")) == {"b3:8080", "b2:8080"}
    assert successors({}, ME.broker) == frozenset()


NOW_MS = 1_700_000_000_000


def _agent(instance: str, host: str = "h1", take_overs: int = 0, ago_ms: int = 1000) -> AgentRecord:
    return AgentRecord(
        instance=instance,
        host=host,
        process_id=7,
        sidecar_url=f"http://{host}:7750",
        registered_at_ms=NOW_MS - ago_ms,
        take_overs=take_overs,
    )


AGENT = _agent("me", ago_ms=0)
BEFORE, OTHER = Rival(_agent("before"), 5), Rival(_agent("other", host="h2"), 3)


@pytest.mark.parametrize(
    ("own_epoch", "rivals", "verdict"),
    [
        pytest.param(None, [], Verdict.TAKE_OVER, id="nobody there"),
        pytest.param(7, [], Verdict.TAKE_OVER, id="registered, nobody there"),
        pytest.param(None, [BEFORE], Verdict.TAKE_OVER, id="the run before on its host"),
        pytest.param(7, [Rival(_agent("later"), 9)], Verdict.END, id="a later one"),
        pytest.param(9, [Rival(_agent("earlier"), 7)], Verdict.TAKE_OVER, id="an earlier one"),
        pytest.param(None, [OTHER], Verdict.STAND_BY, id="a living one of another host"),
        pytest.param(None, [OTHER, BEFORE], Verdict.STAND_BY, id="another host's among others"),
        pytest.param(None, [Rival(AgentRecord(), 3)], Verdict.TAKE_OVER, id="an empty mark"),
        pytest.param(None, [Rival(_agent("older", host=""), 3)], Verdict.TAKE_OVER, id="no host"),
    ],
)
def test_one_of_two_agents_of_a_broker_goes_on(
    own_epoch: int | None, rivals: list[Rival], verdict: Verdict
) -> None:
    assert judge_rivals(AGENT, own_epoch, rivals)[0] is verdict


def test_take_overs_that_follow_one_another_closely_come_to_an_end() -> None:
    before = [Rival(_agent("a", take_overs=n), 3) for n in range(MOST_TAKE_OVERS + 1)]
    verdicts = [judge_rivals(AGENT, None, [one])[0] for one in before]
    assert verdicts == [Verdict.TAKE_OVER] * MOST_TAKE_OVERS + [Verdict.STAND_BY]


def test_take_overs_long_after_one_another_are_restarts() -> None:
    old = Rival(_agent("a", take_overs=MOST_TAKE_OVERS, ago_ms=SOON_MS), 3)
    assert judge_rivals(AGENT, None, [old])[0] is Verdict.TAKE_OVER
    assert take_overs(AGENT, [old]) == 0


def test_the_verdict_names_who_decided_it() -> None:
    assert judge_rivals(AGENT, None, [BEFORE, OTHER]) == (Verdict.STAND_BY, OTHER)


def test_a_mark_is_read_back_as_it_was_written_and_says_where_its_sidecar_is() -> None:
    assert decode_agent("/mark", encode_agent(AGENT)) == AGENT
    assert str(AGENT) == "the sidecar http://h1:7750 on host h1, process 7, instance me"
    assert decode_agent("/mark", b"") == AgentRecord()
    assert str(AgentRecord()) == "a sidecar of an older version"
    with pytest.raises(MalformedContent, match="/mark"):
        decode_agent("/mark", b'{"processId":"many"}')


@pytest.mark.parametrize("timeout_s", [4.0, 10.0, 40.0])
def test_a_lease_is_over_half_a_tick_before_the_timeout_on_a_slow_clock(timeout_s: float) -> None:
    longest = longest_lease_fraction(timeout_s, 2.0)
    over_s = longest * timeout_s * (1 + CLOCK_DRIFT_FRACTION)
    assert over_s < timeout_s - 1.0
    assert over_s > timeout_s - 1.0 - 0.02 * timeout_s


def test_an_unknown_tick_counts_as_half_of_the_session() -> None:
    longest = longest_lease_fraction(10.0, 0.0)
    assert longest * (1 + CLOCK_DRIFT_FRACTION) == pytest.approx(0.74)
    assert longest == longest_lease_fraction(10.0, 5.0)


def test_the_usual_configuration_needs_no_shorter_lease() -> None:
    assert longest_lease_fraction(10.0, 2.0) > 0.66
    assert longest_lease_fraction(4.0, 2.0) > 0.66
    assert longest_lease_fraction(4.0, 0.0) > 0.66


def test_a_tick_of_two_sessions_leaves_no_lease() -> None:
    assert longest_lease_fraction(4.0, 8.0) < 0


def test_a_report_comes_within_a_little_more_than_half_a_tick() -> None:
    assert report_interval_s(10.0, 2.0) == pytest.approx(1.1)
    assert report_interval_s(10.0, 0.0) == pytest.approx(2.6)


def test_a_lease_ends_before_a_timeout_from_what_the_leader_knows() -> None:
    over_s = 5.0 + (latest_end_s(5.0, 10.0) - 5.0) * (1 + CLOCK_DRIFT_FRACTION)
    assert over_s == pytest.approx(14.9)


def test_a_heartbeat_counts_when_one_was_answered_that_was_sent_a_report_later() -> None:
    heartbeats = Heartbeats(2.0)
    assert heartbeats.known_since_s(10.0, 10.5, 1.0) == 2.0
    assert heartbeats.known_since_s(11.4, 11.4, 1.0) == 2.0
    assert heartbeats.known_since_s(11.5, 11.5, 1.0) == 10.0
    assert heartbeats.known_since_s(12.4, 12.4, 1.0) == 11.4
    assert heartbeats.known_since_s(30.0, 30.0, 1.0) == 12.4


def test_regular_heartbeats_leave_the_usual_lease_as_it_is() -> None:
    for timeout_s, tick_s in ((10.0, 2.0), (4.0, 2.0), (4.0, 0.5), (30.0, 2.0)):
        heartbeats, interval_s = Heartbeats(0.0), report_interval_s(timeout_s, tick_s)
        for number in range(1, 50):
            sent_s = number * 0.1 * timeout_s
            known_since_s = heartbeats.known_since_s(sent_s, sent_s + 0.002, interval_s)
            assert latest_end_s(known_since_s, timeout_s) > sent_s + 0.66 * timeout_s


RULES = HealthRules(unhealthy_after=3, healthy_after=2)


def _after(answers: str) -> Health:
    return reduce(lambda h, one: after(RULES, h, good=one == "+"), answers, Health())


def test_a_belief_changes_after_several_like_answers() -> None:
    assert all(_after(answers).healthy for answers in ("--", "--+--+--+", "---++"))
    assert not any(_after(answers).healthy for answers in ("---", "---+", "---+-+-+-"))


BROKERS = [BrokerId(f"b{number}:8080") for number in range(5)]


def test_a_single_sick_broker_among_others_may_go_and_who_is_alone_stays() -> None:
    assert may_be_drained(BROKERS[4], BROKERS, [])
    assert may_be_drained(BROKERS[1], BROKERS[:2], [])
    assert not may_be_drained(BROKERS[0], BROKERS[:1], [])
    assert not may_be_drained(BROKERS[0], [], [])


def test_at_most_half_may_go_and_all_agree_which() -> None:
    going = [b for b in BROKERS if may_be_drained(b, BROKERS, [o for o in BROKERS if o != b])]
    assert going == BROKERS[:2]


A, B, C, D = (BrokerId(f"{name}:1") for name in "abcd")
WAITS = AbsenceRules(return_wait_s=10.0, max_lost_fraction=0.4, session_s=30.0)
JUST_CONNECTED = replace(WAITS, connected_s=104.0)


def missed(*gone: BrokerId) -> Absences:
    absences = Absences()
    absences.observe(100.0, set(gone), [one for one in (B, C, D) if one not in gone], WAITS)
    return absences


def test_one_broker_that_vanished_is_not_waited_for() -> None:
    absences = Absences()
    assert absences.observe(100.0, {A}, [B, C, D], WAITS) == {}
    assert absences.awaited_until_s == {}


def test_many_that_vanished_together_are_waited_for_from_when_each_was_missed() -> None:
    absences = missed(A)
    assert absences.observe(103.0, {A, B}, [C, D], WAITS) == {A: 7.0, B: 10.0}
    assert absences.observe(104.0, {A, B}, [C, D], WAITS) == {}
    assert absences.awaited_until_s == {A: 110.0, B: 113.0}


def test_a_wait_is_not_cut_short_when_others_return() -> None:
    absences = missed(A, B)
    absences.observe(101.0, {A}, [B, C, D], WAITS)
    assert absences.awaited_until_s == {A: 110.0}


def test_a_broker_missed_longer_ago_than_a_session_does_not_count_with_another() -> None:
    absences = missed(A)
    absences.observe(110.0, set(), [B, C, D], WAITS)
    absences.observe(131.0, set(), [B, C, D], WAITS)
    assert absences.observe(131.0, {B}, [C, D], WAITS) == {}


def test_a_leader_that_has_just_connected_waits_for_a_single_broker_as_well() -> None:
    absences = Absences()
    assert absences.observe(100.0, {A}, [B, C, D], JUST_CONNECTED) == {A: 4.0}
    assert Absences().observe(104.0, {A}, [B, C, D], JUST_CONNECTED) == {}


ONE, TWO, THREE = (parse_bundle(f"t/n/0x{at}0000000_0x{at + 1}0000000") for at in (1, 2, 3))
STAYING = [(ONE, A), (TWO, A), (THREE, B)]


def test_no_more_bundles_leave_a_broker_than_may_be_under_way() -> None:
    assert Drains().due(STAYING, {A: 1, B: 1}, 0.0) == {ONE: A, THREE: B}
    assert Drains().due(STAYING, {A: 2, B: 0}, 0.0) == {ONE: A, TWO: A}


def test_what_no_broker_could_take_is_left_alone_for_a_moment() -> None:
    drains = Drains()
    drains.refused([ONE], 5.0)
    assert drains.due(STAYING, {A: 1, B: 0}, 5.0) == {TWO: A}
    assert drains.due(STAYING, {A: 1, B: 0}, 5.0 + TRY_AGAIN_S) == {ONE: A}


def test_the_next_drain_begins_anew() -> None:
    drains = Drains()
    drains.refused([ONE], 5.0)
    assert drains.due([], {}, 5.0) == {}
    assert drains.due(STAYING, {A: 1, B: 0}, 5.0) == {ONE: A}
