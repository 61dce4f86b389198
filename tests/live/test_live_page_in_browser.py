import json
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import jwt
import pytest
from aiohttp import web
from chromium import PATIENCE_MS, chromium
from leader_queries import B2, OVERVIEW
from live_sidecars import BOUNDARIES, LiveSidecars, LoopThread, live_sidecars, loop_thread
from playwright.sync_api import Browser, Page, expect

from loadmanager.adapters.http.live.page import Feed, LivePage, OverviewReader
from loadmanager.adapters.http.routes import Route, target_of
from loadmanager.admin.overview import broker_document

LIVE: Final = Path(__file__).parents[1] / "live"
GOLDEN: Final = LIVE / "layout.json"
MEASURE: Final = LIVE / "layout.js"
NEAR_PX: Final = 2


def layout(page: Page) -> dict[str, Any]:
    found: dict[str, Any] = page.evaluate(MEASURE.read_text())
    return found


def differences(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Return where two layouts differ; boxes may by two pixels."""
    told = [
        f"{part}: {found[part]}; expected {expected[part]}"
        for part in ("colours", "words")
        if found[part] != expected[part]
    ]
    if (ours := found["boxes"]).keys() != (theirs := expected["boxes"]).keys():
        return [*told, f"boxes: {sorted(ours)}; expected {sorted(theirs)}"]
    for name, box in theirs.items():
        off = [abs(ours[name][key] - box[key]) for key in ("left", "width")]
        if max(off) > NEAR_PX or ours[name]["row"] != box["row"]:
            told.append(f"{name}: {ours[name]}; expected {box}")
    return told


def check_layouts(found: dict[str, dict[str, Any]], folder: Path) -> None:
    """Fail if layouts differ from those of the file; what was found is written to ``folder``."""
    (folder / GOLDEN.name).write_text(json.dumps(found, indent=1) + "\n")
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    assert found.keys() == golden.keys(), _renewed(folder)
    told = [f"{name}: {one}" for name in found for one in differences(golden[name], found[name])]
    assert told == [], "\n".join([*told, _renewed(folder)])


def _renewed(folder: Path) -> str:
    return f"if it is meant: cp {folder / GOLDEN.name} {GOLDEN}"


pytestmark = pytest.mark.browser
HERE = Path(__file__).parent
STATIC = HERE.parents[1] / "loadmanager" / "adapters" / "http" / "live" / "static"
BROKERS = [f"127.0.0.1:{port}" for port in (8101, 8102, 8103)]
SECRET = b"0123456789abcdef0123456789abcdef"
SCHEMES: tuple[Literal["dark", "light"], ...] = ("dark", "light")
WIDTHS = (360, 1400)
DRAINING = broker_document(B2, cpu_fraction=0.3, bundles=2, draining=True, healthy=False)
SEEN = OVERVIEW.model_copy(
    update={
        "brokers": [*OVERVIEW.brokers, DRAINING],
        "actions": ["explain", "pause", "observe"],
    }
)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm on the path: Debian has it in its package npm, others with Node.js")
    folder = tmp_path_factory.mktemp("npm")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, folder)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=200)
    return folder / "node_modules"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as one:
        yield one


@contextmanager
def cluster_of(*names: str, **settings: Any) -> Iterator[tuple[LiveSidecars, LoopThread]]:
    with loop_thread() as loop:
        context = live_sidecars()
        cluster = loop.run(context.__aenter__())
        try:
            for name in names:
                loop.run(cluster.start(name, **settings))
            loop.run(cluster.ready())
            loop.run(cluster.create_namespace())
            yield cluster, loop
        finally:
            loop.run(context.__aexit__(None, None, None))


@contextmanager
def page_at(browser: Browser, url: str, **options: Any) -> Iterator[Page]:
    """Open the page; at the end it asked for nothing from elsewhere, and had no error."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000}, **options)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request",
        lambda request: None if request.url.startswith(url) else wrong.append(request.url),
    )
    page.on(
        "console", lambda said: wrong.append(said.text) if "Content Security" in said.text else None
    )
    try:
        page.goto(url)
        yield page
        assert wrong == []
    finally:
        context.close()


def is_accessible(page: Page, packages: Path) -> None:
    """Hold the page to the rules of WCAG 2.2 AA that axe checks."""
    source = (packages / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
    page.evaluate(source)
    tags = ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa", "best-practice"]
    found = page.evaluate("(tags) => axe.run({runOnly: tags})", tags)
    told = [(one["id"], [node["html"] for node in one["nodes"]]) for one in found["violations"]]
    assert told == [], json.dumps(told, indent=2)


def fits(page: Page) -> None:
    """Wait until nothing is wider than the window: a chart follows it a moment later."""
    for _ in range(PATIENCE_MS // 100):
        if page.evaluate("document.documentElement.scrollWidth <= innerWidth"):
            return
        page.wait_for_timeout(100)
    pytest.fail("the page is wider than its window")


def looks_well_everywhere(page: Page, packages: Path) -> None:
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            is_accessible(page, packages)
            fits(page)


def a_hot_broker_is_balanced(page: Page, cluster: LiveSidecars) -> None:
    """Rounds are paused until the page has shown the broker."""
    hot = max(cluster.living, key=lambda one: len(one.broker.serving))
    cluster.traffic.update(dict.fromkeys(BOUNDARIES.bundles, 30.0))
    cluster.traffic.update(dict.fromkeys(hot.broker.serving, 200.0))
    expect(page.locator("#number")).to_have_attribute("data-level", "bad")
    expect(page.locator("#brokers tbody tr").first).to_contain_text(hot.name)
    page.get_by_role("button", name="Resume rounds").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("A round would now make")
    dialog.get_by_role("button", name="Resume rounds").click()
    expect(dialog.get_by_role("status")).to_contain_text("Rounds are active now")
    dialog.get_by_role("button", name="Close").click()
    expect(page.locator("#tasks")).to_contain_text("expected")
    expect(page.locator("#number")).not_to_have_attribute("data-level", "bad")
    moves = page.locator("#decisions li.moved").filter(has_text=f"{hot.name} →")
    expect(moves).not_to_have_count(0)
    expect(page.locator("#course canvas")).to_have_count(1)


def answers_the_keyboard(page: Page) -> None:
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.locator("#subject").focus()
    page.keyboard.type(BOUNDARIES.bundles[0])
    page.keyboard.press("Enter")
    expect(page.locator("#found h3").first).to_contain_text(BOUNDARIES.bundles[0])
    page.locator("#subject").fill("shop/orders")
    page.keyboard.press("Enter")
    expect(page.locator("#found ul li button")).to_have_count(8)
    page.locator("#subject").fill("persistent://shop/orders/one")
    page.keyboard.press("Enter")
    expect(page.locator("#found p").first).to_contain_text("is in the bundle shop/orders/0x")
    page.locator("#subject").fill("nonsense")
    page.keyboard.press("Enter")
    expect(page.locator("#found [role=alert]")).to_contain_text("nonsense")


def does_what_it_is_asked(page: Page, cluster: LiveSidecars) -> None:
    page.get_by_role("button", name="Pause rounds").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("A round would now make")
    dialog.get_by_label("Reason").fill("the night watch")
    dialog.get_by_role("button", name="Pause rounds").click()
    expect(dialog.get_by_role("status")).to_contain_text("Rounds are paused now")
    page.keyboard.press("Escape")
    expect(page.locator("#steering")).to_contain_text("paused by live page: the night watch")
    bundle = BOUNDARIES.bundles[0]
    source = next(one for one in cluster.living if bundle in one.broker.serving)
    target = next(one for one in cluster.living if one is not source)
    page.locator("#subject").fill(bundle)
    page.locator("#search button").click()
    page.get_by_role("button", name="Unload").click()
    expect(dialog).to_contain_text(f"{source.name} owns it")
    dialog.get_by_label("Target broker").fill(target.name)
    dialog.get_by_role("button", name="Unload").click()
    expect(dialog.get_by_role("status")).to_contain_text(f"{source.name} → {target.name}, in")
    assert bundle in target.broker.serving
    dialog.get_by_role("button", name="Close").click()


def observes_splits_and_drains(page: Page, cluster: LiveSidecars) -> None:
    dialog = page.get_by_role("dialog")

    def done(action: str, outcome: str) -> None:
        dialog.get_by_role("button", name=action).click()
        expect(dialog.get_by_role("status")).to_contain_text(outcome)
        dialog.get_by_role("button", name="Close").click()

    def find(subject: str) -> None:
        page.locator("#subject").fill(subject)
        page.locator("#search button").click()
        expect(page.locator("#found h3").first).to_contain_text(subject)

    page.get_by_role("button", name="Only observe").click()
    expect(dialog).to_contain_text("A round would now make")
    done("Only observe", "Rounds are observing now")
    bundle = BOUNDARIES.bundles[0]
    find(bundle)
    page.get_by_role("button", name="Split").click()
    expect(dialog).to_contain_text("owns it")
    done("Split", "It is split into 0x00000000_0x10000000, 0x10000000_0x20000000.")
    drained = next(one for one in cluster.living if not one.leads)
    find(drained.name)
    page.get_by_role("button", name="Drain", exact=True).click()
    expect(dialog).to_contain_text(f"{drained.name} has")
    done("Drain", "It is empty, after")
    assert not drained.broker.serving
    expect(page.locator("#brokers tbody tr", has_text=drained.name)).to_contain_text("draining")
    page.get_by_role("button", name="End the drain").click()
    expect(dialog).to_contain_text("it is draining since")
    done("End the drain", "It takes bundles again.")
    expect(page.locator("#brokers tbody tr", has_text=drained.name)).not_to_contain_text("draining")


def goes_on_when_the_leader_is_killed(page: Page, cluster: LiveSidecars, loop: LoopThread) -> None:
    killed = cluster.leader
    loop.run(cluster.crash(killed))
    expect(page.locator("#leader")).to_contain_text("term 2")
    expect(page.locator("#missing")).to_contain_text(killed.name)
    expect(page.locator("#connection")).to_have_text("Live")


def test_the_page_of_a_follower_shows_the_cluster(browser: Browser, packages: Path) -> None:
    with cluster_of(*BROKERS) as (cluster, loop):
        follower = next(one for one in cluster.living if not one.leads)
        with page_at(browser, follower.url) as page:
            expect(page.locator("#served-by")).to_have_text(follower.name)
            answers_the_keyboard(page)
            does_what_it_is_asked(page, cluster)
            a_hot_broker_is_balanced(page, cluster)
            looks_well_everywhere(page, packages)
            observes_splits_and_drains(page, cluster)
            goes_on_when_the_leader_is_killed(page, cluster, loop)


def test_a_token_is_asked_for_and_asked_for_again_when_it_ends(
    browser: Browser, packages: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret.key").write_bytes(SECRET)
    security = {
        "token_secret_key_file": str(tmp_path / "secret.key"),
        "readers": ["reader"],
        "anonymous": "none",
    }

    def token(valid_s: float) -> str:
        ends_s = time.time_ns() // 10**9 + valid_s
        return jwt.encode({"sub": "reader", "exp": ends_s}, SECRET, "HS256")

    def use(page: Page, text: str) -> None:
        page.get_by_label("Token", exact=True).fill(text)
        page.get_by_role("button", name="Use", exact=True).click()

    with (
        cluster_of(BROKERS[0], security=security) as (cluster, _loop),
        page_at(browser, cluster.leader.url) as page,
    ):
        expect(page.locator("#token-form")).to_be_visible()
        expect(page.locator("#number")).to_have_text("…")
        is_accessible(page, packages)
        use(page, "nonsense")
        expect(page.locator("#token-reason")).to_contain_text("not accepted")
        use(page, token(8))
        expect(page.locator("#connection")).to_have_text("Live")
        expect(page.locator("#token-form")).to_be_hidden()
        expect(page.locator("#token-reason")).to_contain_text("expired")
        expect(page.locator("#token-form")).to_be_visible()
        expect(page.locator("#cluster")).to_have_text("east")
        use(page, token(600))
        expect(page.locator("#connection")).to_have_text("Live")
        page.get_by_role("button", name="Pause rounds").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Pause rounds").click()
        expect(dialog.get_by_role("status")).to_contain_text("needs the role admin")


async def _handle(route: Route, request: web.Request) -> web.StreamResponse:
    return await route.handler(request, target_of(request.raw_path))


@asynccontextmanager
async def served_page(reader: OverviewReader) -> AsyncIterator[str]:
    feed, app = Feed(reader), web.Application()
    for route in LivePage(feed).routes():
        app.router.add_route(route.method, route.pattern, partial(_handle, route))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await feed.close()
        await runner.cleanup()


def test_the_layout_is_as_it_was(browser: Browser, tmp_path: Path) -> None:
    found = {}
    with loop_thread() as loop:
        context = served_page(OverviewReader(lambda: SEEN, "b9:8080"))
        url = loop.run(context.__aenter__())
        try:
            with page_at(browser, url, locale="en-GB", timezone_id="UTC") as page:
                expect(page.locator("#decisions li")).not_to_have_count(0)
                for scheme in SCHEMES:
                    page.emulate_media(color_scheme=scheme)
                    for width in WIDTHS:
                        page.set_viewport_size({"width": width, "height": 900})
                        fits(page)
                        found[f"{scheme} {width}"] = layout(page)
        finally:
            loop.run(context.__aexit__(None, None, None))
    check_layouts(found, tmp_path)


def test_the_library_is_that_of_its_package(packages: Path) -> None:
    for own, theirs in (
        ("uplot.js", "dist/uPlot.iife.min.js"),
        ("uplot.css", "dist/uPlot.min.css"),
        ("uplot.LICENSE", "LICENSE"),
    ):
        assert (STATIC / own).read_bytes() == (packages / "uplot" / theirs).read_bytes()
