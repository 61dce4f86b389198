"""The picture of the live page in the README, taken of a run: ``live_page_picture.py``.

Starts the demo, opens the page of a sidecar in a real Chromium, and takes the picture once the
cluster was watched for a minute and the page says that it is balanced.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from chromium import chromium  # noqa: E402 - found through the line above
from playwright.sync_api import expect  # noqa: E402 - after what skips without it

PICTURE: Final = ROOT / "docs" / "live-page.png"
UP_S: Final = 120.0
WATCHED_MS: Final = 60_000
BALANCED_MS: Final = 90_000
MOST_BYTES: Final = 150_000
_LINE: Final = "live page"


@contextmanager
def demo() -> Iterator[str]:
    command = (sys.executable, "-m", "loadmanager", "demo", "--json", "--duration", "240")
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "told"
        with (
            told.open("wb") as stderr,
            subprocess.Popen(
                [*command, "--data-dir", f"{folder}/data"], stdout=subprocess.DEVNULL, stderr=stderr
            ) as running,
        ):
            try:
                yield _url(told)
            finally:
                running.terminate()


def _url(told: Path) -> str:
    until_s = time.monotonic() + UP_S
    while time.monotonic() < until_s:
        for line in told.read_text().splitlines():
            if line.strip().startswith(_LINE):
                return line.partition(_LINE)[2].strip()
        time.sleep(0.5)
    raise SystemExit(f"the demo was not up within {UP_S:g} s:\n{told.read_text()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=PICTURE)
    out = parser.parse_args().out
    with demo() as url, chromium() as browser:
        page = browser.new_page(viewport={"width": 1120, "height": 690}, locale="en-GB")
        page.goto(url)
        page.wait_for_timeout(WATCHED_MS)
        level = page.locator("#number")
        expect(level).to_have_attribute("data-level", "good", timeout=BALANCED_MS)
        page.screenshot(path=out)
        size = out.stat().st_size
        print(f"{out}: {size} bytes, {level.inner_text()}")
    if size > MOST_BYTES:
        raise SystemExit(f"{out}: {size} bytes; expected at most {MOST_BYTES}")


if __name__ == "__main__":
    main()
