"""The ledger that brokers share: what was acknowledged stays, and one owner at a time appends."""

from pathlib import Path

import pytest

from tests.testbed.pulsar_protocol.ledger import Fenced, Ledger


def test_a_newer_owner_finds_all_that_was_appended_and_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "topic"
    first = Ledger(path, 5)
    numbers = [first.append(b"%d" % number) for number in range(4)]
    first.ack("s", [numbers[0], numbers[2]])
    newer = Ledger(path, 6)
    numbers.append(newer.append(b"4"))
    left = [(numbers[1], 5, b"1"), (numbers[3], 5, b"3"), (numbers[4], 6, b"4")]
    assert newer.unacked("s", 0, 10) == left
    assert newer.unacked("s", numbers[1], 1) == left[1:2]
    assert len(newer.unacked("other", 0, 10)) == 5


def test_a_former_owner_neither_appends_nor_acknowledges_nor_opens_again(tmp_path: Path) -> None:
    path = tmp_path / "topic"
    former = Ledger(path, 5)
    number = former.append(b"0")
    newer = Ledger(path, 6)
    with pytest.raises(Fenced):
        former.append(b"1")
    with pytest.raises(Fenced):
        former.ack("s", [number])
    with pytest.raises(Fenced):
        Ledger(path, 5)
    assert newer.unacked("s", 0, 10) == [(number, 5, b"0")]
