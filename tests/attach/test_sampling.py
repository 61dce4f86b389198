"""What a broker's pages of metrics and lists of bundles become over several readings."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.pulsar.answers import BUFFERS, PulsarCluster
from loadmanager.pulsar.client import Access, PulsarAdmin, Unanswered
from loadmanager.pulsar.sampling import Sampler

BROKER = BrokerId("b:1")
BUNDLE = BundleId("t/n/0x00000000_0xffffffff")
HALVES = (BundleId("t/n/0x00000000_0x80000000"), BundleId("t/n/0x80000000_0xffffffff"))
TOPIC, OTHER = "persistent://t/n/one", "persistent://t/n/two"
NO_ANSWER = "no answer within 60 s"
FIRST, REPEATS = "its second reading is not there yet", "it repeats its page of metrics"


@dataclass(frozen=True)
class Page:
    """Counters of topics, and what else is read with them; ``owned`` is the broker's other answer.

    The page begins to arrive after a while, and has arrived after another.
    """

    topics: dict[str, float]
    cpu_s: float | None = None
    clock_s: float | None = None
    started_s: float | None = None
    owned: Any = (BUNDLE,)
    after_s: float = 10.0
    takes_s: float = 0.0

    def text(self) -> str:
        process = (("cpu_seconds_total", self.cpu_s), ("start_time_seconds", self.started_s))
        lines = [f'process_{name}{{cluster="c"}} {one}' for name, one in process if one is not None]
        if self.clock_s is not None:
            lines.append(f'jetty_stats_seconds{{cluster="c"}} {self.clock_s}')
        for name, count in self.topics.items():
            labels = f'namespace="t/n",topic="{name}"'
            lines.append(f"pulsar_in_messages_total{{{labels}}} {count}")
            lines.append(f"pulsar_in_bytes_total{{{labels}}} {10 * count}")
        return "\n".join(lines) + "\n"


class Answers(PulsarAdmin):
    """One broker that answers with one page after the other, on a clock of its own."""

    page: Page | None = None
    now_s = 1000.0

    async def lines(self, url: str) -> AsyncIterator[bytes]:
        assert url == "http://b:1/metrics/"
        if self.page is None:
            self.now_s += 10.0
            raise Unanswered(f"{url}: {NO_ANSWER}")
        self.now_s += self.page.after_s
        yield self.page.text().encode()
        self.now_s += self.page.takes_s
        yield b""

    async def text(self, url: str, *_: Any, **__: Any) -> str:
        assert url.endswith("/ownedNamespaces")
        assert self.page is not None
        owned = self.page.owned
        return owned if isinstance(owned, str) else json.dumps({name: {} for name in owned})


def one(count: float, **more: Any) -> Page:
    return Page({TOPIC: count}, **more)


# Each reading: the page, and the rate of the bundle with what is said of it, or why there is none.
STORIES: dict[str, list[tuple[Page | None, str]]] = {
    "no answer once": [(one(100), FIRST), (one(200), "10"), (None, NO_ANSWER), (one(600), "20")],
    "steady": [(one(100), FIRST), (one(200), "10"), (one(400), "20")],
    "slow pages, which count when they begin to arrive": [
        (one(0, after_s=1, takes_s=50), FIRST),
        (one(600, after_s=10, takes_s=40), "10"),
        (one(1_000, after_s=0), "10"),
    ],
    "pages that are repeated, of which the first is of unknown age": [
        (one(1_000, cpu_s=1), FIRST),
        (one(1_000, cpu_s=1), REPEATS),
        (one(7_000, cpu_s=2), REPEATS),
        *[(one(7_000, cpu_s=2), REPEATS)] * 5,
        (one(13_000, cpu_s=3), "100"),
        *[(one(13_000, cpu_s=3), "100 repeated")] * 5,
        (one(13_000, cpu_s=3, owned=()), "lists no bundle; expected about 1, as before"),
    ],
    "pages that the broker is set to repeat": [
        (one(1_000), FIRST),
        (one(7_000), REPEATS),
        (one(7_000), REPEATS),
        (one(8_000), "50"),
    ],
    "pages with the broker's clock, by which also the first has its date": [
        (one(1_000, clock_s=5), FIRST),
        (one(1_000, clock_s=5), REPEATS),
        (one(7_000, clock_s=65, after_s=1, takes_s=8), "100"),
        *[(one(7_000, clock_s=65), "100 repeated")] * 12,
        (one(10_000, clock_s=125), "50"),
        (one(10_000, clock_s=135), "0"),
        (one(11_000, clock_s=145), "100"),
    ],
    "counters that stand still beside a process that works": [
        (one(1_000, cpu_s=1), FIRST),
        (one(2_000, cpu_s=2), "100"),
        *[(one(2_000, cpu_s=3 + n), "100 repeated") for n in range(5)],
        (one(8_000, cpu_s=9), "100"),
    ],
    "traffic that ends": [
        (one(1_000, cpu_s=1), FIRST),
        (one(2_000, cpu_s=2), "100"),
        *[(one(2_000, cpu_s=3 + n), "100 repeated") for n in range(9)],
        (one(2_000, cpu_s=12), "0"),
        (one(2_000, cpu_s=13), "0"),
        (one(3_000, cpu_s=14), "100"),
    ],
    "a broker without traffic": [
        (one(1_000, cpu_s=1), FIRST),
        (one(1_000, cpu_s=2), "0"),
        (one(1_000, cpu_s=3), "0"),
        (one(2_000, cpu_s=4), "33"),
        (one(3_000, cpu_s=5), "100"),
    ],
    "a process that began anew, and is busier than the one before": [
        (one(100, cpu_s=1, started_s=1), FIRST),
        (one(200, cpu_s=2, started_s=1), "10"),
        (one(500, cpu_s=9, started_s=2), "50 partial restarted"),
        (one(600, cpu_s=10, started_s=2), "10 partial"),
        (one(700, cpu_s=11, started_s=2), "10"),
    ],
    "a process that began anew seconds ago, after a while without answers": [
        (one(100, started_s=1, clock_s=90), FIRST),
        (None, NO_ANSWER),
        (None, NO_ANSWER),
        (one(80, started_s=2, clock_s=4), "20 partial restarted"),
    ],
    "a process that began anew, and does not say when": [
        (one(100, cpu_s=5), FIRST),
        (one(500, cpu_s=1), "50 partial restarted"),
    ],
    "a bundle that came": [
        (Page({}, owned=()), FIRST),
        (Page({}, owned=()), "none"),
        (Page({}), "0"),
        (one(900), "90 partial"),
        (one(1_900), "100 partial"),
        (one(2_000), "10"),
    ],
    "a topic of a bundle that is there": [
        (one(100), FIRST),
        (Page({TOPIC: 200, OTHER: 100}), "20 partial"),
        (Page({TOPIC: 300, OTHER: 200}), "20"),
    ],
    "a bundle that is split": [(one(100), FIRST), (one(200), "10"), (one(300, owned=HALVES), "10")],
    "bundles that are no object": [
        (one(100), FIRST),
        (one(200), "10"),
        (one(300, owned="null"), "answered null; expected an object of bundles"),
        (one(400, owned="[]"), "answered []; expected an object of bundles"),
        (one(500), FIRST),
        (one(600), "10"),
    ],
    "bundles that are gone all at once": [
        (one(100), FIRST),
        (one(200, owned=()), "lists no bundle; expected about 1, as before"),
        (one(300, owned=()), FIRST),
        (one(400, owned=()), "none"),
    ],
    "the last one that left": [(one(100), FIRST), (one(200), "10"), (Page({}, owned=()), "none")],
    "topics that are gone all at once": [
        (one(100), FIRST),
        (one(200), "10"),
        (Page({}), "counts no topic; expected about 1, as before"),
        (one(3e8), FIRST),
        (one(3e8 + 100), "10"),
    ],
}


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Answers:
    made = Answers(Access())
    monkeypatch.setattr("loadmanager.pulsar.answers.monotonic", lambda: made.now_s)
    return made


@pytest.mark.parametrize("name", STORIES)
async def test_windows_of(name: str, admin: Answers) -> None:
    settings = {BROKER: {BUFFERS: "true"}} if "set to repeat" in name else {}
    cluster = PulsarCluster(name="c", brokers=(BROKER,), settings=settings)
    sampler = Sampler(admin, lambda broker: f"http://{broker}")
    for number, (page, expected) in enumerate(STORIES[name]):
        admin.page = page
        samples, missing = await sampler.sample(cluster)
        if sample := samples.get(BROKER):
            busy = (bundle for bundle in sample.bundles.values() if bundle.topics)
            found = next(busy, sample.bundles.get(BUNDLE))
            told = "none" if found is None else f"{found.msgs_per_s:.0f}"
            said = (
                ("partial", found is not None and found.partial),
                ("repeated", sample.repeated_s > 0),
                ("restarted", sample.restarted),
            )
            told = " ".join([told, *(word for word, applies in said if applies)])
            assert (number, told) == (number, expected)
        else:
            assert expected in missing[BROKER], number


async def test_a_window_began_when_its_first_page_was_made(admin: Answers) -> None:
    """Moves wait for windows that began after the last one ended."""
    sampler = Sampler(admin, lambda broker: f"http://{broker}")
    began = []
    # The pages were made at 960, 1,030 and 1,090 by the clock here, for somebody else.
    for page in (
        one(0, clock_s=60),
        one(7_000, clock_s=130, after_s=20),
        one(13_000, clock_s=190, after_s=60),
    ):
        admin.page = page
        samples, _ = await sampler.sample(PulsarCluster(name="c", brokers=(BROKER,)))
        began += [sample.began_s for sample in samples.values()]
    assert began == [960.0, 1030.0]
