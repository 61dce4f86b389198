import io
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from click.testing import CliRunner
from fake_pulsar import FakeBroker, FakePulsar, running

import loadmanager
from loadmanager.cli import main
from loadmanager.cli.top import observe
from loadmanager.telemetry.logging import configure_logging
from loadmanager.telemetry.visible import VisibleStream, visible

HOSTILE = "\x1b[2J\x07\r\x08\x00\x7f\x9b31m\u202eevil\u2066\u200f\ud800\x1b]0;x\x07"
MOVES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def test_texts_are_escaped_at_any_depth_and_lines_stay_lines() -> None:
    assert visible(HOSTILE) == (
        r"\x1b[2J\x07\x0d\x08\x00\x7f\x9b31m\u202eevil\u2066\u200f\ud800\x1b]0;x\x07".replace(
            r"\x0d", r"\r"
        )
    )
    assert visible({HOSTILE: [HOSTILE, 1, None, (2.5, "a\n\tb é 漢 😀")]}) == {
        visible(HOSTILE): [visible(HOSTILE), 1, None, [2.5, "a\n\tb é 漢 😀"]]
    }


def test_a_stream_escapes_and_is_else_as_the_one_beneath() -> None:
    beneath = io.StringIO()
    stream = VisibleStream(beneath)
    stream.write(HOSTILE)
    assert (stream.getvalue(), stream.isatty()) == (visible(HOSTILE), False)
    with pytest.raises(TypeError):
        stream.write(b"")  # type: ignore[arg-type] # which is how click tells texts from bytes


@pytest.mark.parametrize("format_", ["console", "json"])
def test_logs_show_no_control_characters(format_: str) -> None:
    stream = io.StringIO()
    configure_logging(format_, "info", stream)
    try:
        log = structlog.get_logger()
        log.info("broker.answered", broker=HOSTILE, more=[HOSTILE], fields={"a": HOSTILE})
        log.error("broker.failed", exc_info=ValueError(HOSTILE))
    finally:
        structlog.reset_defaults()
    assert "evil" in stream.getvalue()
    assert MOVES.findall(stream.getvalue()) == []


def test_the_page_escapes_the_same() -> None:
    (folder,) = map(Path, loadmanager.__path__)
    script = (folder / "adapters/http/live/static/stream.js").read_text(encoding="utf-8")
    escaped = (folder / "telemetry/visible.py").read_text(encoding="utf-8")
    (ours,) = re.findall(r'r"\[(\\u0000.+)"\n', escaped)
    assert f"/[{ours}]/g" in script
    assert len(re.findall(r"JSON\.parse\(.*visible\)", script)) == script.count("JSON.parse(") == 2


@pytest.fixture
def hostile() -> FakePulsar:
    topic = f"persistent://a/b/{HOSTILE[:4]}"
    names = "loadManagerClassName", "loadBalancerLoadSheddingStrategy", "metricsBufferResponse"
    first = FakeBroker(
        owned=["a/b/0x00000000_0xffffffff"],
        topics={topic: [0.0] * 4},
        grows={topic: (50.0, 100.0, 5_000.0, 10_000.0)},
        settings=dict.fromkeys(names, HOSTILE[:-9]),
    )
    second = FakeBroker()
    second.tells("/metrics/", HOSTILE.replace("\ud800", ""), status=500)
    first.tells("/admin/v2/brokers/version", HOSTILE.replace("\ud800", ""))
    return FakePulsar(
        [first, second],
        groups={"a/b": HOSTILE.replace("\ud800", "")},
        isolation={HOSTILE[:8]: {"namespaces": [f"(?!{HOSTILE[:8]})a"], "primary": []}},
    )


@pytest.mark.parametrize(
    "more",
    [
        ("--once",),
        ("--once", "--doctor"),
        ("--once", "--as", "pulsar-admin"),
        ("--once", "--balance"),
        ("--once", "--balance", "--verbose", "--strategy", "joint"),
        ("--once", "--json"),
        ("--restore",),
        ("--pause",),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("cluster", ["research", HOSTILE])
def test_commands_print_no_control_characters(
    hostile: FakePulsar, tmp_path: Path, more: tuple[str, ...], cluster: str
) -> None:
    hostile.settings["clusterName"] = cluster
    with running(hostile):
        command = ["attach", "--pulsar", hostile.url, "--state-dir", str(tmp_path)]
        found = CliRunner().invoke(main, [*command, "--interval", "0.2", *more])
    assert isinstance(found.exception, SystemExit | None), found.output
    assert found.output
    assert MOVES.findall(found.output) == []
    assert all(json.loads(line) for line in found.stdout.splitlines() if "--json" in more)


def test_options_of_the_user_are_no_exception() -> None:
    url = ["attach", "--pulsar", HOSTILE]
    for command in (url, ["lookup", HOSTILE], [HOSTILE], ["top", "-x\x1b"]):
        found = CliRunner().invoke(main, command)
        assert MOVES.findall(found.output) == [], command


COMMANDS = [
    *("brokers", "leader", "lookup persistent://a/b/c", "top --times 1", "decisions", "tasks"),
    *("explain a/b", "plan", "shadows", "snapshot", "drain b:1", "unload a/b/0x0_0x1"),
    *("pause", "observe", "resume", "namespaces list", "bundles a/b", "isolation list east"),
    *("config list", "brokers --json"),
]


@pytest.fixture(params=[200, 500])
def sidecar(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a sidecar that answers everything by what is hostile."""
    every = {"text": HOSTILE, "number": 1, "list": [HOSTILE]}
    names = ("reason", "brokerId", "leader", "cluster", "broker", "subject", "detail", "meaning")
    document = {**dict.fromkeys(names, HOSTILE), "decisions": [every], "tasks": [every], "x": every}
    body = json.dumps(document).encode()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.send_response(request.param, "\x9b31m")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = answer  # noqa: N815 - as the library looks for it

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_commands_print_no_control_characters_of_a_sidecar(sidecar: str) -> None:
    shown = ""
    for command in COMMANDS:
        found = CliRunner(env={"LOADMANAGER_URL": sidecar}).invoke(main, command.split())
        assert MOVES.findall(found.output) == [], command
        shown += found.output
    assert "evil" in shown


def test_top_draws_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmanager.cli.top.snapshot_of", lambda _: None)
    monkeypatch.setattr("loadmanager.cli.top.broker_rows", lambda *_: ())
    monkeypatch.setattr("loadmanager.cli.top.leader_of", lambda _: {"brokerId": HOSTILE})
    answers = {"decisions": [{"subject": HOSTILE}], "optimality": None}
    client: Any = SimpleNamespace(json=lambda *_, **__: answers)
    look = observe(client)
    assert MOVES.findall(f"{look.leader} {look.moves[0]['subject']}") == []
