"""Which of two agents of one broker goes on."""

import pytest

from loadmanager.core.errors import MalformedContent
from loadmanager.core.succession import MOST_TAKE_OVERS, SOON_MS, Rival, Verdict, judge, take_overs
from loadmanager.core.wire.records import AgentRecord, decode_agent, encode_agent

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


ME = _agent("me", ago_ms=0)


def _verdict(own_epoch: int | None, *rivals: tuple[AgentRecord, int]) -> Verdict:
    return judge(ME, own_epoch, [Rival(record, epoch) for record, epoch in rivals])[0]


def test_who_finds_nobody_takes_the_broker() -> None:
    assert _verdict(None) is Verdict.TAKE_OVER
    assert _verdict(7) is Verdict.TAKE_OVER


def test_a_restarted_sidecar_takes_over_from_the_run_before_it_on_its_host() -> None:
    assert _verdict(None, (_agent("before"), 9)) is Verdict.TAKE_OVER


def test_who_has_registered_before_ends_for_a_later_one_and_not_for_an_earlier() -> None:
    assert _verdict(7, (_agent("later"), 9)) is Verdict.END
    assert _verdict(9, (_agent("earlier"), 7)) is Verdict.TAKE_OVER


def test_nobody_takes_over_from_a_living_sidecar_of_another_host() -> None:
    assert _verdict(None, (_agent("other", host="h2"), 3)) is Verdict.STAND_BY


def test_one_living_sidecar_of_another_host_is_enough_to_wait() -> None:
    rivals = (_agent("other", host="h2"), 3), (_agent("before"), 5)
    assert _verdict(None, *rivals) is Verdict.STAND_BY


@pytest.mark.parametrize("unknown", [AgentRecord(), _agent("older", host="")])
def test_a_host_that_nobody_knows_is_no_other_host(unknown: AgentRecord) -> None:
    assert _verdict(None, (unknown, 3)) is Verdict.TAKE_OVER


def test_take_overs_that_follow_one_another_closely_come_to_an_end() -> None:
    before = [_agent("a", take_overs=count) for count in range(MOST_TAKE_OVERS + 1)]
    verdicts = [_verdict(None, (one, 3)) for one in before]
    assert verdicts == [Verdict.TAKE_OVER] * MOST_TAKE_OVERS + [Verdict.STAND_BY]


def test_take_overs_long_after_one_another_are_restarts() -> None:
    old = _agent("a", take_overs=MOST_TAKE_OVERS, ago_ms=SOON_MS)
    assert _verdict(None, (old, 3)) is Verdict.TAKE_OVER
    assert take_overs(ME, [Rival(old, 3)]) == 0


def test_the_verdict_names_who_decided_it() -> None:
    other = Rival(_agent("other", host="h2"), 3)
    assert judge(ME, None, [Rival(_agent("before"), 5), other]) == (Verdict.STAND_BY, other)


def test_a_mark_is_read_back_as_it_was_written() -> None:
    assert decode_agent("/mark", encode_agent(ME)) == ME


def test_an_empty_mark_is_of_an_older_version() -> None:
    assert decode_agent("/mark", b"") == AgentRecord()
    assert str(AgentRecord()) == "a sidecar of an older version"


def test_a_spoilt_mark_is_named() -> None:
    with pytest.raises(MalformedContent, match="/mark"):
        decode_agent("/mark", b'{"processId":"many"}')


def test_a_mark_says_where_to_find_its_sidecar() -> None:
    assert str(ME) == "the sidecar http://h1:7750 on host h1, process 7, instance me"
