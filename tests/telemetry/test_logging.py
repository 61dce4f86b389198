import errno
import io
import json
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import pytest
import structlog
from pydantic import SecretStr

from loadmanager.telemetry.logging import configure_logging, warnings_alone


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    shown = warnings.showwarning
    yield
    root.handlers[:] = before
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    warnings.showwarning = shown
    for name in ("kazoo", "aiohttp.access", "asyncio"):
        logging.getLogger(name).setLevel(logging.NOTSET)
    structlog.reset_defaults()


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Disk(io.StringIO):
    """A stream to a disk that may be full."""

    full = False

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


def events(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_json_object_with_level_and_utc_time() -> None:
    stream = io.StringIO()
    configure_logging("json", "info", stream)
    structlog.get_logger().info("bundle.lock.acquired", bundle="a/b/0x0_0x1", cpu_fraction=0.5)
    (event,) = events(stream)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", event.pop("timestamp"))
    assert event == {
        "event": "bundle.lock.acquired",
        "level": "info",
        "bundle": "a/b/0x0_0x1",
        "cpu_fraction": 0.5,
    }
    # A library logs in the same form.
    logging.getLogger("kazoo.client").warning("Connection %s", "dropped")
    event = events(stream)[1]
    assert event.pop("timestamp").endswith("Z")
    assert event == {"event": "Connection dropped", "level": "warning", "logger": "kazoo.client"}


def test_a_logger_made_before_follows_the_configuration() -> None:
    log = structlog.get_logger()
    first, second = io.StringIO(), io.StringIO()
    configure_logging("json", "info", first)
    log.info("one.thing.done")
    configure_logging("json", "info", second)
    log.info("other.thing.done")
    logging.getLogger("x").info("foreign")
    assert [e["event"] for e in events(first)] == ["one.thing.done"]
    assert [e["event"] for e in events(second)] == ["other.thing.done", "foreign"]


def test_less_than_the_level_is_left_out() -> None:
    stream = io.StringIO()
    configure_logging("json", "warning", stream)
    structlog.get_logger().info("a.thing.done")
    logging.getLogger("x").info("foreign")
    structlog.get_logger().warning("a.thing.failed")
    assert [e["event"] for e in events(stream)] == ["a.thing.failed"]
    # Kazoo may not print its requests even at debug.
    stream = io.StringIO()
    configure_logging("json", "debug", stream)
    logging.getLogger("kazoo.protocol.connection").debug("Sending request: Auth(hunter2)")
    structlog.get_logger().debug("a.thing.seen")
    assert [e["event"] for e in events(stream)] == ["a.thing.seen"]


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_traceback_is_text_and_has_no_local_values(form: Literal["json", "console"]) -> None:
    stream = io.StringIO()
    configure_logging(form, "info", stream)
    _fail_and_log("hunter2")
    text = stream.getvalue()
    assert "ValueError: invalid literal" in (
        events(stream)[0]["exception"] if form == "json" else text
    )
    assert "hunter2" not in text


def _fail_and_log(login: str) -> None:
    try:
        int(f"{login} is no number"[-6:])
    except ValueError:
        structlog.get_logger().exception("thing.work.failed")


def test_secrets_are_hidden_by_type_and_by_name() -> None:
    stream = io.StringIO()
    configure_logging("json", "info", stream)
    structlog.get_logger().info(
        "login.request.sent",
        login=SecretStr("hunter2"),
        digest_password="hunter2",  # noqa: S106 - that it is hidden is the test
        headers={"Authorization": "Basic hunter2", "Accept": "*"},
        fencing_token=7,
    )
    (event,) = events(stream)
    assert "hunter2" not in stream.getvalue()
    assert event["headers"] == {"Authorization": "********", "Accept": "*"}
    assert event["fencing_token"] == 7


def test_a_terminal_gets_the_console_form_and_a_pipe_json() -> None:
    terminal, pipe = Terminal(), io.StringIO()
    configure_logging("auto", "info", terminal)
    structlog.get_logger().info("a.thing.done")
    configure_logging("auto", "info", pipe)
    structlog.get_logger().info("a.thing.done")
    assert not terminal.getvalue().startswith("{")
    assert "a.thing.done" in terminal.getvalue()
    assert events(pipe)[0]["event"] == "a.thing.done"


def test_a_warning_of_python_becomes_an_event() -> None:
    stream = io.StringIO()
    configure_logging("json", "info", stream)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=False)
        logging.captureWarnings(capture=True)
        warnings.warn("old way", DeprecationWarning, stacklevel=1)
        logging.captureWarnings(capture=False)
    (event,) = events(stream)
    assert event["logger"] == "py.warnings"
    assert "old way" in event["event"]


def test_a_full_disk_costs_lines_and_nothing_else_and_is_told_of_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = Disk()
    configure_logging("json", "info", disk)
    disk.full = True
    structlog.get_logger().info("a.thing.done")
    logging.getLogger("other.package").warning("something")
    disk.full = False
    structlog.get_logger().info("a.thing.begun")
    assert [(e["event"], e.get("count")) for e in events(disk)] == [
        ("log.lines.lost", 2),
        ("a.thing.begun", None),
    ]
    disk.full = True
    monkeypatch.setattr(sys, "stderr", disk)
    with warnings_alone():
        structlog.get_logger().warning("a.thing.failed")
