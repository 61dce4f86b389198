"""A deliberately broken history is caught, whatever is broken in it."""

from dataclasses import replace

import pytest
from plain_spells import WHOLE, publish, spell

from loadmanager.core.errors import MalformedContent
from tests.testbed.checker.availability import Disturbance
from tests.testbed.checker.publishes import publishes_in
from tests.testbed.checker.verdict import History, judge

KILL = Disturbance(what="kill b1", began_s=8, healed_s=8, within_s=4)
GOOD = History(
    intervals=[spell(0, 9, token=3), spell(11, 30, by="b2", token=5)],
    publishes=[publish(5, token=3), publish(15, by="b2", token=5)],
    hash_name="murmur3",
    bundles=[WHOLE],
    from_s=1,
    until_s=20,
    disturbances=[KILL],
    hand_over_s=0.5,
)


def test_a_good_history_has_no_violation() -> None:
    assert list(judge(GOOD).violations) == []


@pytest.mark.parametrize(
    ("broken", "found"),
    [
        (
            replace(GOOD, intervals=[spell(0, 11.5, token=3), GOOD.intervals[1]]),
            "was served by b1:8080 (token 3) and b2:8080 (token 5) from 11.000 s to 11.500 s",
        ),
        (
            replace(GOOD, publishes=[publish(12, token=3)]),
            "its broker did not serve the bundle under that token then",
        ),
        (
            replace(GOOD, intervals=[GOOD.intervals[0], spell(11, 30, by="b2", token=2)]),
            "b2:8080 began t/n/0x00000000_0xffffffff under token 2",
        ),
        (replace(GOOD, disturbances=[]), "was not served for 2.000 s from 9.000 s"),
        (replace(GOOD, disturbances=[replace(KILL, within_s=2.9)]), "was not served"),
        (
            replace(GOOD, disturbances=[replace(KILL, brokers=frozenset({"b2:8080"}))]),
            "which b1:8080 lost, was not served for 2.000 s from 9.000 s",
        ),
    ],
    ids=["two owners", "no owner", "token back", "free", "free too long", "another was hit"],
)
def test_a_broken_history_is_caught(broken: History, found: str) -> None:
    assert any(found in violation for violation in judge(broken).violations)


def test_what_a_client_wrote_comes_back() -> None:
    refused = replace(publish(5), status=0, acknowledgement=None)
    sent = [publish(5), refused]
    text = "".join(f"{one.to_line()}\n" for one in sent)
    assert list(publishes_in(text, "client-1")) == sent


def test_half_a_last_line_is_ignored() -> None:
    line = publish(5).to_line()
    assert list(publishes_in(f"{line}\n{line[:30]}", "client-1")) == [publish(5)]


@pytest.mark.parametrize("line", ["hello", "[]", "{}", '{"acknowledgement": {}}'])
def test_a_line_that_is_no_attempt_is_told_with_its_place(line: str) -> None:
    with pytest.raises(MalformedContent, match=r"client-1:2: .* fields of Publish"):
        list(publishes_in(f"{publish(5).to_line()}\n{line}\n", "client-1"))
