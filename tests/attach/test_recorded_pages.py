"""Windows between pages that real brokers served (`recorded_pages.txt`)."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from loadmanager.core.bundle_traffic import Window, between
from loadmanager.pulsar.answers import Exposition, read_exposition

FILE = Path(__file__).with_name("recorded_pages.txt")
PAGES = {
    title: (float(at_s), text)
    for title, at_s, text in re.findall(
        r"^== (.+) \(\S+, ([\d.]+)\)\n((?:(?!==).*\n)*)", FILE.read_text("utf-8"), re.MULTILINE
    )
}
ORDERS, STATES = (f"persistent://trial/count/{name}" for name in ("orders", "states"))


async def page(title: str) -> Exposition:
    async def blocks() -> AsyncIterator[bytes]:
        yield PAGES[title][1].encode()

    return await read_exposition(blocks())


async def window(first: str, second: str) -> Window:
    before, after = await page(first), await page(second)
    assert before.totals
    assert after.totals
    grew = after.totals[0] - before.totals[0], after.totals[1] - before.totals[1]
    took_s = PAGES[second][0] - PAGES[first][0]
    return between(before.topics, after.topics, took_s, grew)


# The topic has 200 messages/s, which "billing" receives; all it has counted is 4,027 to 7,299.
@pytest.mark.parametrize(
    ("first", "second", "msgs_in", "msgs_out"),
    [
        ("two subscriptions", "a Reader has read all from the earliest", 2027, 2028),
        ("a Reader has read all from the earliest", "the Reader has closed", 8, 9),
        ("two subscriptions", "the Reader has closed", 2035, 2037),
        ("the Reader has closed", "a consumer has closed", 1227, 1227),
        ("a consumer has closed", "its subscription was deleted", 10, 8),
        ("two subscriptions", "its subscription was deleted", 3272, 3272),
    ],
)
async def test_what_opens_or_closes_does_not_change_a_topics_lasting_rates(
    first: str, second: str, msgs_in: int, msgs_out: int
) -> None:
    found = await window(first, second)
    took_s = PAGES[second][0] - PAGES[first][0]
    rates = found.rates[ORDERS]
    assert rates.msgs_in_per_s * took_s == pytest.approx(msgs_in)
    assert rates.msgs_out_per_s * took_s == pytest.approx(msgs_out)


async def test_a_compaction_reads_in_passing() -> None:
    """It has read 240 messages, of which 100 were published within the window."""
    first, second = "after a compaction", "after a second compaction"
    found, took_s = await window(first, second), PAGES[second][0] - PAGES[first][0]
    assert found.rates[STATES].msgs_in_per_s * took_s == pytest.approx(100)
    assert found.rates[STATES].msgs_out_per_s * took_s == pytest.approx(100)
    assert found.passing[STATES].msgs_out_per_s * took_s == pytest.approx(240)


async def test_segments_are_counted_by_their_names() -> None:
    assert "segment://trial/five/orders/0000-ffff-0" in (await page("a scalable topic")).topics
