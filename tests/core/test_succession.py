"""Which of two agents of one broker goes on."""

import pytest

from loadmanager.core.errors import MalformedContent
from loadmanager.core.leadership import (
    MOST_TAKE_OVERS,
    SOON_MS,
    Rival,
    Verdict,
    judge_rivals,
    take_overs,
)
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
    assert judge_rivals(ME, own_epoch, rivals)[0] is verdict


def test_take_overs_that_follow_one_another_closely_come_to_an_end() -> None:
    before = [Rival(_agent("a", take_overs=n), 3) for n in range(MOST_TAKE_OVERS + 1)]
    verdicts = [judge_rivals(ME, None, [one])[0] for one in before]
    assert verdicts == [Verdict.TAKE_OVER] * MOST_TAKE_OVERS + [Verdict.STAND_BY]


def test_take_overs_long_after_one_another_are_restarts() -> None:
    old = Rival(_agent("a", take_overs=MOST_TAKE_OVERS, ago_ms=SOON_MS), 3)
    assert judge_rivals(ME, None, [old])[0] is Verdict.TAKE_OVER
    assert take_overs(ME, [old]) == 0


def test_the_verdict_names_who_decided_it() -> None:
    assert judge_rivals(ME, None, [BEFORE, OTHER]) == (Verdict.STAND_BY, OTHER)


def test_a_mark_is_read_back_as_it_was_written_and_says_where_its_sidecar_is() -> None:
    assert decode_agent("/mark", encode_agent(ME)) == ME
    assert str(ME) == "the sidecar http://h1:7750 on host h1, process 7, instance me"
    assert decode_agent("/mark", b"") == AgentRecord()
    assert str(AgentRecord()) == "a sidecar of an older version"
    with pytest.raises(MalformedContent, match="/mark"):
        decode_agent("/mark", b'{"processId":"many"}')
