"""A real Chromium without a window, and what a page in it says and asks for."""

import base64
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE_MS = 60_000
"""A busy machine makes a page slow, not wrong."""


@dataclass(slots=True)
class Heard:
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the Chromium that is installed; skip where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no Chromium on the path: none of {', '.join(NAMES)}")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Browser, file: Path, *, dark: bool = False) -> Iterator[tuple[Page, Heard]]:
    page = browser.new_page(
        viewport={"width": 1400, "height": 1000}, color_scheme="dark" if dark else "light"
    )
    heard = Heard()
    page.on("pageerror", lambda error: heard.errors.append(str(error)))
    page.on("console", lambda said: heard.errors.append(f"{said.type}: {said.text}"))
    page.on("request", lambda request: heard.requests.append(request.url))
    try:
        page.goto(file.as_uri())
        yield page, heard
    finally:
        page.close()


MANY_COLOURS = 50
"""A chart that is not drawn has no more, the letters' edges included."""


def colours(blank: Page, png: bytes) -> int:
    script = """async (text) => {
        const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
        const image = await createImageBitmap(new Blob([bytes]));
        const drawing = new OffscreenCanvas(image.width, image.height).getContext("2d");
        drawing.drawImage(image, 0, 0);
        const pixels = drawing.getImageData(0, 0, image.width, image.height).data;
        return new Set(new Uint32Array(pixels.buffer)).size;
    }"""
    return int(blank.evaluate(script, base64.b64encode(png).decode()))


def fetched_alone(heard: Heard, file: Path) -> None:
    """Check that a page fetched nothing but its own file, and that nothing failed."""
    assert heard.errors == []
    asked = [url for url in heard.requests if not url.startswith(("data:", "blob:"))]
    assert asked == [file.as_uri()]
