"""The live page of `loadmanager attach --page`."""

import http.client
import json
import time
from pathlib import Path
from typing import Any

import pytest
from attach_process import LIMIT_S, attached
from fake_pulsar import FakePulsar
from page_events import event, free_port

BALANCING = "/admin/v2/loadmanager/balancing"
PAUSE = f"{BALANCING}/pause?by=live%20page&reason=a%20look%0Afirst"
RESUME = f"{BALANCING}/resume"


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    """Return the status and the text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    connection.request(
        method, path, headers={one.replace("_", "-"): headers[one] for one in headers}
    )
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def overview(port: int, mode: str, by: str = "") -> dict[str, Any]:
    """Return the first overview of this mode, set by someone whose name begins so."""
    until_s = time.monotonic() + LIMIT_S
    while True:
        kind, told = event(port)
        if kind == "event: overview":
            seen: dict[str, Any] = told["overview"]
            balancing = seen["balancing"]
            if balancing["mode"] == mode and balancing["by"].startswith(by):
                return seen
        assert time.monotonic() < until_s, told
        time.sleep(0.1)


@pytest.mark.parametrize("mode", ["observing", "active"])
def test_what_attach_does_is_shown_to_this_host(
    pulsar: FakePulsar, tmp_path: Path, mode: str
) -> None:
    port = free_port()
    more = ["--balance", "--settle", "0"] if mode == "active" else []
    options = ["--pulsar", pulsar.url, "--interval", "0.2", "--state-dir", str(tmp_path)]
    with attached(*options, "--page", str(port), *more) as process:
        seen = overview(port, mode)
        assert seen["measure"] == "rate"
        assert seen["actions"] == (["pause", "resume"] if mode == "active" else [])
        assert len(seen["brokers"]) == seen["brokersInAll"] > 1
        assert ask(port, "/", Host="localhost")[0] == 200
        assert ask(port, "/live/app.js", Host="127.0.0.1")[0] == 200
        assert ask(port, "/live/events", Host="evil.example")[0] == 403
        if mode == "observing":
            code, why = ask(port, PAUSE, "PUT")
            assert (code, "makes no moves now" in why) == (503, True)
        process.terminate()
        process.wait()


def test_the_page_pauses_and_resumes_as_the_command_does(
    pulsar: FakePulsar, tmp_path: Path
) -> None:
    port = free_port()
    options = ["--pulsar", pulsar.url, "--interval", "0.2", "--state-dir", str(tmp_path)]
    with attached(*options, "--pause") as command:
        assert command.wait() == 0
    with attached(*options, "--page", str(port), "--balance", "--settle", "0") as process:
        seen = overview(port, "paused")
        assert seen["balancing"]["by"].startswith("attach --pause at ")
        code, text = ask(port, "/admin/v2/loadmanager/plan?limit=1")
        assert (code, "is fullest" in json.loads(text)["moves"][0]["meaning"]) == (200, True)
        for name, value in (
            ("Host", "evil.example"),
            ("Origin", "http://evil.example"),
            ("Sec_Fetch_Site", "cross-site"),
            ("X_Forwarded_For", "10.0.0.1"),
        ):
            assert ask(port, RESUME, "PUT", **{name: value})[0] == 403
        assert json.loads(ask(port, BALANCING)[1])["mode"] == "paused"
        assert pulsar.unloads == []
        assert ask(port, RESUME, "PUT", Origin=f"http://127.0.0.1:{port}")[0] == 204
        process.until("resumed by the live page")
        process.until("serving")
        assert pulsar.unloads
        assert ask(port, PAUSE, "PUT")[0] == 204
        assert json.loads(ask(port, BALANCING)[1])["mode"] == "paused"
        process.until("paused by the live page at")
        by = overview(port, "paused", "the live page at ")["balancing"]["by"]
        assert by.rpartition(": ")[2] == "a look first"
        process.terminate()
        process.wait()
