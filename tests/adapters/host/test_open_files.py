"""The limit of open files beside the most connections that are configured."""

import resource
import subprocess
import sys

import pytest
from structlog.testing import capture_logs

from loadmanager.adapters.host.open_files import allow_connections


def after(soft: int, hard: int, most: int) -> tuple[int, list[str]]:
    """Return the soft limit afterwards, and what the log says."""
    now = (soft, hard)

    def set_limits(limits: tuple[int, int]) -> None:
        nonlocal now
        now = limits

    with capture_logs() as logs:
        allow_connections(most, limits=lambda: now, set_limits=set_limits)
    assert now[1] == hard
    return now[0], [f"{one['event']} {one.get('fits', '')}".strip() for one in logs]


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "logged"),
    [
        (8_192, 8_192, 8_192, []),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, resource.RLIM_INFINITY, []),
        (1_024, resource.RLIM_INFINITY, 4_352, []),
        (1_024, 4_352, 4_352, []),
        (1_024, 4_096, 4_096, ["http.open_files.too_few 3840"]),
        (128, 128, 128, ["http.open_files.too_few 1"]),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_it_must_or_may(
    soft: int, hard: int, raised: int, logged: list[str]
) -> None:
    assert after(soft, hard, most=4_096) == (raised, logged)


def test_a_limit_that_may_not_be_raised_is_a_warning_that_says_what_fits() -> None:
    def refuse(_limits: tuple[int, int]) -> None:
        raise PermissionError("not here")

    with capture_logs() as logs:
        allow_connections(4_096, limits=lambda: (1_024, 8_192), set_limits=refuse)
    assert [one["event"] for one in logs] == [
        "http.open_files.not_raised",
        "http.open_files.too_few",
    ]
    assert logs[1]["key"] == "[http] max_connections"
    assert (logs[1]["limit"], logs[1]["fits"]) == (1_024, 768)


def test_a_real_process_raises_its_own_limit() -> None:
    program = (
        "import resource as r\n"
        "from loadmanager.adapters.host.open_files import allow_connections\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (300, 700))\n"
        "allow_connections(400)\n"
        "print(r.getrlimit(r.RLIMIT_NOFILE))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert ended.stdout == "(656, 700)\n"
