"""What docs/pipeline.md begins with, run as it stands, where no Java is but the extra's own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from chromium import chromium, opened
from playwright.sync_api import expect
from whole_demo import Demo

from loadmanager.pipeline.jobs import JOBS
from loadmanager.pipeline.reporting.job import SECTIONS
from loadmanager.pipeline.reporting.loads import HOTTEST
from loadmanager.pipeline.reporting.shapes import NAMESPACES

pytestmark = [
    *(pytest.mark.thorough, pytest.mark.spark, pytest.mark.processes),
    pytest.mark.timeout(900),
]
DRAWN = (HOTTEST, NAMESPACES)
"""What there is to draw of however short a history: what has no course."""


@pytest.fixture
def path_without_java(tmp_path: Path) -> str:
    """Return a PATH with everything that this one has, but no Java."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for directory in os.environ["PATH"].split(os.pathsep):
        for program in Path(directory).glob("*"):
            if program.name != "java" and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program)
    return str(folder)


def opens_in_a_browser(report: Path, picture: Path) -> None:
    """Look at the page as an operator does; a picture of it is left for who wants to see it."""
    with chromium() as browser, opened(browser, report) as (page, heard):
        for part in SECTIONS:
            expect(page.get_by_role("heading", name=part.title, exact=True)).to_be_visible()
        for part in DRAWN:
            heading = page.get_by_role("heading", name=part.title, exact=True)
            assert page.locator("section", has=heading).locator(".plot").count() > 0, part.title
        expect(page.get_by_text("No advice: it needs 4.0 h of history and 20")).to_be_visible()
        for chart in page.locator(".plot").all():
            chart.scroll_into_view_if_needed()
            expect(chart).to_have_attribute("data-state", "drawn")
        assert page.screenshot(path=picture, full_page=True)
        assert heard.errors == []
        assert [url for url in heard.requests if not url.startswith(("data:", "blob:"))] == [
            report.as_uri()
        ]


def test_a_live_demo_becomes_a_report(
    demo_with_a_killed_leader: Demo,
    first_commands: dict[str, list[str]],
    path_without_java: str,
    tmp_path: Path,
) -> None:
    folder = demo_with_a_killed_leader.folder
    before = {entry.name for entry in folder.iterdir()}
    environment = {**os.environ, "PATH": path_without_java}
    environment.pop("JAVA_HOME", None)
    # Each plan runs once: compiling it well costs more than it saves.
    environment["JDK_JAVA_OPTIONS"] = (
        "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
    )
    done = subprocess.run(
        [sys.executable, "-m", "loadmanager", "pipeline", *first_commands["pipeline"]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = [word for word in first_commands["pipeline"] if word in JOBS]
    assert re.findall(r"^(\w+)$", done.stdout, re.MULTILINE) == jobs
    counts = re.search(r"lines: (\d+) read = (\d+) kept \+ 0 quarantined \+ 0 dup", done.stdout)
    assert counts is not None, done.stdout
    assert int(counts[1]) == int(counts[2]) > 100
    report = folder / "tables" / "report.html"
    assert report.read_text(encoding="utf-8").lower().startswith("<!doctype html>")
    noise = [line for line in done.stderr.splitlines() if "JDK_JAVA_OPTIONS" not in line]
    assert noise == []
    assert {entry.name for entry in folder.iterdir()} - before == {"tables"}
    opens_in_a_browser(report, tmp_path / "report.png")
