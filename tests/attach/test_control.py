"""What is asked of `attach` over HTTP: drains, cordons and pauses, as of sidecars."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from attach_process import attached, free_port
from click.testing import CliRunner, Result
from fake_pulsar import FakePulsar

from loadmanager.cli import main
from loadmanager.pulsar.answers import ClusterReader
from loadmanager.pulsar.client import Access, PulsarAdmin
from loadmanager.pulsar.held_brokers import Cordons, pause_of, pause_text
from loadmanager.pulsar.reports import AttachOverviews, served_page
from loadmanager.pulsar.state import Part, State
from tests.attach.conftest import isolation_policy
from tests.attach.test_attach_page import ask, overview

ADMIN = "/admin/v2/loadmanager"
Ask = Callable[..., Any]


class Asked:
    """The page of a candidate that has seen no window, as one that does not lead."""

    def __init__(self, port: int, overviews: AttachOverviews) -> None:
        self.port, self.overviews, self.told = port, overviews, list[str]()

    async def __call__(self, method: str, path: str, **headers: str) -> tuple[int, Any]:
        code, text = await asyncio.to_thread(ask, self.port, f"{ADMIN}/{path}", method, **headers)
        return code, json.loads(text) if text else None

    async def refused(self, method: str, path: str, **headers: str) -> tuple[int, str]:
        code, answer = await self(method, path, **headers)
        return code, answer["reason"]


@pytest.fixture
async def page(hosts: FakePulsar, state: State) -> AsyncIterator[Asked]:
    port, admin = free_port(), PulsarAdmin(Access())
    async with served_page(port, balances=True) as overviews:
        found = Asked(port, overviews)
        overviews.control.begin(state, ClusterReader(admin, (hosts.url,)), found.told.append)
        yield found
    await admin.close()


async def test_brokers_are_marked_and_what_cannot_be_is_refused(
    hosts: FakePulsar, state: State, page: Asked
) -> None:
    first, second, third = (f"brokers/{one.name}" for one in hosts.brokers)
    left = sum(not one.startswith("pulsar/") for one in hosts.brokers[0].owned)
    hosts.isolation["own"] = isolation_policy("bench/skew", ["127.0.0.1"])
    for method, path, code, why in (
        ("PUT", "brokers/nobody:8080/drain", 404, "no broker of research; expected one of 127."),
        ("PUT", "brokers/a%2Fb/cordon", 412, "a/b"),
        ("GET", "brokers/nobody:8080", 404, "no such broker is registered or marked"),
        ("PUT", f"{first}/drain?by=a&by=b", 400, "by is given 2 times"),
        ("PUT", f"{first}/drain", 409, "isolation policy own allows no other broker"),
        ("POST", f"{first}/drain", 405, "POST is not for this path"),
        ("PUT", "balancing/observe", 412, "expected pause or resume"),
        ("GET", "overview", 503, "no window of the cluster is over yet"),
    ):
        found = await page.refused(method, path)
        assert (found[0], why in found[1]) == (code, True), found
    hosts.isolation.clear()
    for header in (
        {"Host": "evil.example"},
        {"Origin": "http://evil.example"},
        {"Sec_Fetch_Site": "cross-site"},
        {"X_Forwarded_For": "10.0.0.1"},
        {"Forwarded": "for=10.0.0.1"},
    ):
        for method, path in (("PUT", f"{first}/drain"), ("DELETE", f"{first}/cordon")):
            assert (await page.refused(method, path, **header))[0] == 403
    assert await Cordons(state).read() == {}
    assert page.told == []
    both = (f"{second}/cordon?by=ann&reason=a%0Alook", f"{third}/cordon")
    assert await asyncio.gather(*(page("PUT", one) for one in both)) == [(204, None)] * 2
    code, why = await page.refused("PUT", f"{first}/drain")
    assert (code, "besides 127.0.0.1" in why) == (409, True)
    assert await page("DELETE", f"{third}/drain") == (204, None)
    assert await page("DELETE", f"{third}/cordon") == (204, None)
    for by in ("ann", "bob"):
        assert await page("PUT", f"{first}/drain?by={by}") == (204, None)
    _, seen = await page("GET", first)
    assert (seen["marked"]["by"], seen["marked"]["drain"], seen["bundlesLeft"]) == (
        *("ann", True, left),
    )
    assert not seen["draining"], "no controller has seen it"
    _, seen = await page("GET", second)
    assert (seen["registered"], seen["marked"]["drain"]) == (True, False)
    told = [one.partition(" ")[2] for one in page.told]
    assert [*sorted(told[:2]), *told[2:]] == [
        "is cordoned, and takes no bundle: asked over HTTP",
        "is cordoned, and takes no bundle: asked over HTTP by ann: a look",
        "takes bundles again: asked over HTTP",
        "is drained, and takes no bundle: asked over HTTP by ann",
    ]
    await state.keep(Part.CORDONS, "[]")
    code, why = await page.refused("PUT", f"{third}/cordon")
    assert (code, "expected the cordons of attach" in why) == (503, True)
    for one in hosts.brokers:
        one.down = True
    assert (await page("GET", first))[0] == 503


async def test_pauses_are_those_of_the_command(page: Asked, state: State) -> None:
    for by, mode in (("ann", "paused"), ("bob", "paused"), ("", "active")):
        asked = "pause" if by else "resume"
        assert await page("PUT", f"balancing/{asked}?by={by}&reason=new%20disk") == (204, None)
        _, found = await page("GET", "balancing")
        author = ("ann", "new disk", True) if by else ("", "", False)
        assert found["mode"] == mode
        assert (found["by"], found["reason"], found["sinceMs"] > 0) == author
    await state.pause("by hand")
    assert (await page("GET", "balancing"))[1]["reason"] == "by hand"


def test_the_command_of_sidecars_drains_brokers_of_attach(
    hosts: FakePulsar, tmp_path: Path
) -> None:
    port, kept = free_port(), "bench/kept/0x00000000_0xffffffff"
    first, second, _ = hosts.brokers
    first.owned.append(kept)
    options = ["--pulsar", hosts.url, "--interval", "0.3", "--state-dir", str(tmp_path)]
    more = ["--settle", "0", "--exclude", "bench/kept", "--page", str(port)]

    def asked(*command: str) -> Result:
        return CliRunner().invoke(main, [*command, "--url", f"http://127.0.0.1:{port}"])

    def seen() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(ask(port, f"{ADMIN}/overview")[1])
        return found

    def marks(of: str) -> tuple[bool, bool]:
        (found,) = (one for one in seen()["brokers"] if one["broker"] == of)
        return found["draining"], found["cordoned"]

    with attached(*options, "--balance", *more) as process:
        overview(port, "active")
        assert "balancing is paused" in asked("pause", "--reason", "new disk").stdout
        assert ask(port, f"{ADMIN}/brokers/{second.name}/cordon", "PUT")[0] == 204
        process.until("held: paused by")
        process.until(f"{second.name}: cordoned")
        partly = asked("drain", first.name, "--timeout", "15")
        assert partly.exit_code == 1, partly.output
        assert "1 bundles are left after 15 s; the drain goes on. 1 stay: bench/kept" in (
            partly.stderr
        )
        first.owned.remove(kept)
        empty = asked("drain", first.name, "--timeout", "60")
        assert (empty.exit_code, f"{first.name} is empty" in empty.stdout) == (0, True)
        assert first.owned == []
        tasks = asked("tasks", "--all", "--broker", first.name)
        assert tasks.stdout.count("serving") == len(hosts.unloads) > 0
        assert (marks(first.name), marks(second.name)) == ((True, False), (False, True))
        assert asked("drain", "nobody:8080").exit_code == 2
        assert "takes bundles again; it has 0" in asked("drain", first.name, "--undo").stdout
        hosts.brokers.remove(second)
        process.until(", 2 brokers")
        (gone,) = seen()["missing"]
        assert (gone["broker"], gone["why"]) == (second.name, "cordoned, and not there")
        process.end()


def test_what_is_stored_as_a_pause_is_read_whoever_wrote_it() -> None:
    for end in ("", "\n", "\n: "):
        found = pause_of(f"paused by somebody{' at 1111-1: ' * 3}{end}")
        assert found is not None
        assert (found.by, found.reason[:4]) == ("somebody", " at ")
    known = pause_of(pause_text("ann", "new\nhosts: two"))
    assert known is not None
    assert (known.by, known.reason) == ("ann", "new hosts: two")
