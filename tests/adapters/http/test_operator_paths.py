"""Unloads, splits, merges and drains by hand over HTTP: paths, bodies, statuses; `merge` itself."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from click.testing import CliRunner

from loadmanager.adapters.http.routes import Route
from loadmanager.admin.brokers import Drains, DrainState, Marked
from loadmanager.admin.bundles import Splits, UnloadedBundle, Unloads
from loadmanager.cli import main
from loadmanager.core.ids import BrokerId, BundleId, Namespace
from loadmanager.core.orders import SplitOrder
from loadmanager.core.wire.records import DrainMark
from loadmanager.ports.lookup import (
    Conflict,
    Missing,
    NamespaceUnknown,
    Unavailable,
    Unfit,
)
from tests.adapters.http.conftest import PUBLIC, Reply, RunningServer, StartServer

B1, B2 = BrokerId("b1:8080"), BrokerId("b2:8080")
LOWER, UPPER = "0x00000000_0x40000000", "0x40000000_0x80000000"
WHOLE = BundleId(f"{PUBLIC}/0x00000000_0x80000000")
NS, OURS = f"/admin/v2/namespaces/{PUBLIC}", f"/admin/v2/loadmanager/namespaces/{PUBLIC}"
UNLOAD, SPLIT = f"PUT {NS}/{LOWER}/unload", f"PUT {NS}/{LOWER}/split"
MERGE, OUR_UNLOAD = f"PUT {OURS}/{LOWER}/merge", f"PUT {OURS}/{LOWER}/unload"
BROKER = "/admin/v2/loadmanager/brokers/b1:8080"
MARK, UNMARK, STATUS = f"PUT {BROKER}/drain", f"DELETE {BROKER}/drain", f"GET {BROKER}"


@dataclass
class FakeLeader(Drains):
    """Does whatever it is asked to, or raises ``refuses``; one broker has seven bundles."""

    refuses: Exception | None = None
    found: DrainMark | None = None
    algorithm: str = "range_equally_divide"
    asked: list[tuple[Any, ...]] = field(default_factory=list)

    def routes(self) -> list[Route]:
        return [
            *Unloads(self.unload).routes(),
            *Splits(self.split, self.merge, lambda: self.algorithm).routes(),
            *super().routes(),
        ]

    def _ask(self, *what: Any) -> None:
        self.asked.append(what)
        if self.refuses is not None:
            raise self.refuses

    async def unload(
        self, namespace: Namespace, range_text: str | None, destination: BrokerId | None
    ) -> Sequence[UnloadedBundle]:
        self._ask(namespace, range_text, destination)
        bundle = BundleId(f"{namespace}/{range_text}")
        return [UnloadedBundle(bundle=bundle, source=B1, target=destination or B2, took_s=0.01234)]

    async def split(self, namespace: Namespace, chosen: str, order: SplitOrder) -> None:
        self._ask(namespace, chosen, order)

    async def merge(self, namespace: Namespace, range_text: str, other: str | None) -> BundleId:
        self._ask(namespace, range_text, other)
        return WHOLE

    async def mark(self, broker: BrokerId, *, by: str, reason: str) -> None:
        self._ask("mark", broker, by, reason)

    async def unmark(self, broker: BrokerId) -> None:
        self._ask("unmark", broker)

    async def status(self, broker: BrokerId) -> DrainState:
        self._ask("status", broker)
        return DrainState(
            broker=broker,
            registered=True,
            draining=self.found is not None,
            marked=self.found and Marked.model_validate(self.found),
            bundles_left=7,
        )


@pytest.fixture
def leader() -> FakeLeader:
    return FakeLeader()


@pytest.fixture
async def server(start_server: StartServer, leader: FakeLeader) -> RunningServer:
    return await start_server(more_routes=leader.routes())


async def request(server: RunningServer, line: str, body: bytes = b"") -> Reply:
    method, _, path = line.partition(" ")
    headers = {"Content-Type": "application/json"}
    return await server.ask(path, method, data=body, headers=headers)


EQUALLY = SplitOrder("range_equally_divide")
AT_POSITIONS = "?splitAlgorithmName=specified_positions_divide&unload=true"


@pytest.mark.parametrize(
    ("line", "body", "asked"),
    [
        (UNLOAD, b"", (PUBLIC, LOWER, None)),
        (f"PUT {NS}/unload", b"", (PUBLIC, None, None)),
        *(
            (f"{UNLOAD}?authoritative=false&destinationBroker={url}", b"", (PUBLIC, LOWER, B2))
            for url in ("b2:8080", "http://b2:8080", "https://b2:8080/", "HTTP://b2:8080")
        ),
        (f"{UNLOAD}?destinationBroker=b2%3A8080", b"", (PUBLIC, LOWER, B2)),
        *((SPLIT, body, (PUBLIC, LOWER, EQUALLY)) for body in (b"", b"null", b" ")),
        (
            f"PUT {NS}/HOT/split{AT_POSITIONS}",
            b"[1, 4294967295]",
            (PUBLIC, "HOT", SplitOrder("specified_positions_divide", (1, 4294967295))),
        ),
        (f"{MARK}?by=ann&reason=new%20disk", b"", ("mark", B1, "ann", "new disk")),
        (UNMARK, b"", ("unmark", B1)),
    ],
)
async def test_what_is_done_is_answered_204(
    server: RunningServer, leader: FakeLeader, line: str, body: bytes, asked: tuple[Any, ...]
) -> None:
    got = await request(server, line, body)
    assert (got.status, got.text, leader.asked) == (204, "", [asked])


TOLD = {"bundle": f"{PUBLIC}/{LOWER}", "source": B1, "target": "b3:8080", "tookS": 0.0123}
SEVEN = {
    "broker": B1,
    "registered": True,
    "draining": False,
    "bundlesLeft": 7,
    "marked": None,
    "stay": {},
}


@pytest.mark.parametrize(
    ("line", "asked", "told"),
    [
        (f"{OUR_UNLOAD}?destinationBroker=b3:8080", (PUBLIC, LOWER, "b3:8080"), TOLD),
        (MERGE, (PUBLIC, LOWER, None), {"bundle": "0x00000000_0x80000000"}),
        (f"{MERGE}?with={UPPER}", (PUBLIC, LOWER, UPPER), {"bundle": "0x00000000_0x80000000"}),
        (STATUS, ("status", B1), SEVEN),
    ],
)
async def test_what_there_is_to_tell_is_told(
    server: RunningServer, leader: FakeLeader, line: str, asked: tuple[Any, ...], told: Any
) -> None:
    got = await request(server, line)
    assert (got.status, got.text) == (200, json.dumps(told, separators=(",", ":")))
    assert leader.asked == [asked]


async def test_a_mark_is_told_with_who_and_why(server: RunningServer, leader: FakeLeader) -> None:
    leader.found = DrainMark(since_ms=5, by="ann", reason="disk")
    got = (await request(server, STATUS)).json()
    marked = {"sinceMs": 5, "by": "ann", "reason": "disk", "drain": True}
    assert (got["draining"], got["marked"]) == (True, marked)


async def test_the_usual_algorithm_is_configured(server: RunningServer, leader: FakeLeader) -> None:
    for leader.algorithm in ("topic_count_equally_divide", "flow_or_qps_equally_divide"):
        await request(server, SPLIT)
        assert leader.asked[-1][2].algorithm == leader.algorithm


@pytest.mark.parametrize(
    ("lines", "error", "status"),
    [
        ((UNLOAD, MERGE), NamespaceUnknown, 404),
        ((UNLOAD, SPLIT, MERGE), Missing, 404),
        ((MARK, STATUS), Missing, 404),
        ((UNLOAD,), Conflict, 409),
        ((MERGE,), Conflict, 409),
        ((MERGE,), Unfit, 412),
        ((SPLIT,), Unfit, 412),
        ((UNLOAD, SPLIT, MERGE, MARK, UNMARK, STATUS), Unavailable, 503),
    ],
)
async def test_each_refusal_has_its_status_and_says_why(
    server: RunningServer,
    leader: FakeLeader,
    lines: Sequence[str],
    error: Callable[[str], Exception],
    status: int,
) -> None:
    leader.refuses = error("not now")
    for line in lines:
        got = await request(server, line)
        assert (got.status, got.text) == (status, '{"reason":"not now"}')
        assert "Location" not in got.headers


@pytest.mark.parametrize(
    ("line", "body", "status", "said"),
    [
        (UNLOAD.replace("public", "a%20b"), b"", 412, "tenant/namespace"),
        (f"{UNLOAD}?destinationBroker=nowhere", b"", 412, "nowhere"),
        (f"{UNLOAD}?destinationBroker=http://", b"", 412, "host:port"),
        (SPLIT.replace("public", "a%20b"), b"", 412, "tenant/namespace"),
        (SPLIT, b"[1", 400, "the body is not JSON"),
        (SPLIT, b"7", 400, "as a whole = 7: Input should be a valid array"),
        (SPLIT, b'["7"]', 400, "0 = '7': Input should be a valid integer"),
        (SPLIT, b"[true]", 400, "0 = True: Input should be a valid integer"),
        (SPLIT, b"[4294967296]", 400, "Input should be less than or equal to 4294967295"),
        *((one.replace(B1, "nowhere"), b"", 412, "host:port") for one in (MARK, UNMARK, STATUS)),
    ],
)
async def test_what_is_malformed_is_refused_unasked(
    server: RunningServer, leader: FakeLeader, line: str, *, body: bytes, status: int, said: str
) -> None:
    got = await request(server, line, body)
    assert (got.status, leader.asked) == (status, [])
    assert said in got.text


async def test_the_command_merge_tells_the_whole(server: RunningServer, leader: FakeLeader) -> None:
    arguments = ["merge", f"{PUBLIC}/{LOWER}", f"{PUBLIC}/{UPPER}", "--url", server.url]
    for refusal, code, says in (
        (None, 0, f"are {WHOLE} now\n"),
        (Unfit("they are not adjacent"), 2, "they are not adjacent"),
        (Conflict("it is on its way"), 1, "it is on its way"),
    ):
        leader.refuses = refusal
        said = await asyncio.to_thread(CliRunner().invoke, main, arguments)
        assert (said.exit_code, says in said.output) == (code, True), said.output
        assert leader.asked[-1] == (PUBLIC, LOWER, UPPER)
    for lower, upper, says in (
        (PUBLIC, f"{PUBLIC}/{UPPER}", "expected tenant/namespace/0x"),
        (f"{PUBLIC}/{LOWER}", f"public/other/{UPPER}", "of the same namespace"),
    ):
        said = CliRunner().invoke(main, ["merge", lower, upper, "--url", "http://127.0.0.1:9"])
        assert (said.exit_code, says in said.output) == (2, True)
