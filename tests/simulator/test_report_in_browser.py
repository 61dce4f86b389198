"""The report in a real Chromium: it opens from a file, alone, and answers the mouse."""

from pathlib import Path

import pytest
import small_comparison
from chromium import MANY_COLOURS, Heard, chromium, colours, fetched_alone, opened
from playwright.sync_api import Locator, Page, expect
from small_comparison import AVG, EVIL

pytestmark = pytest.mark.browser

PLACE_OF_THE_LAST_MOVE = """(chart) => {
    const layout = chart._fullLayout;
    const moves = chart.data.find((trace) => trace.name.startsWith("shed"));
    const yaxis = moves.yaxis === "y2" ? layout.yaxis2 : layout.yaxis;
    const corner = chart.getBoundingClientRect();
    return [
        corner.left + layout._size.l + layout.xaxis.d2p(moves.x.at(-1)),
        corner.top + yaxis._offset + yaxis.d2p(moves.y.at(-1)),
    ];
}"""


def drawn(chart: Locator) -> None:
    chart.scroll_into_view_if_needed()
    expect(chart).to_have_attribute("data-state", "drawn")


def draws_only_what_is_opened(page: Page) -> None:
    run = page.locator("details", has=page.get_by_role("heading", name=AVG)).first
    chart = run.locator(".plot")
    assert chart.get_attribute("data-state") is None
    run.locator("summary").click()
    drawn(chart)
    assert chart.locator(".scatterlayer .trace").count() >= 5  # brokers, bound, moves
    assert chart.locator(".barlayer .point").count() > 0
    run.locator("summary").click()
    expect(chart.locator("svg")).to_have_count(0)


def tells_why_a_bundle_moved(page: Page) -> None:
    run = page.locator("details", has=page.get_by_role("heading", name="threshold")).first
    run.locator("summary").click()
    chart = run.locator(".plot")
    drawn(chart)
    tells_of_a_move(page, chart)


def tells_of_a_move(page: Page, chart: Locator) -> None:
    x, y = chart.evaluate(PLACE_OF_THE_LAST_MOVE)
    page.mouse.move(x, y)
    hover = chart.locator(".hoverlayer .hovertext").first
    expect(hover).to_contain_text("shop/orders/0x")
    expect(hover).to_contain_text("messages/s")


def sorts_by_a_column(page: Page) -> None:
    table = page.locator("table").first
    header = table.locator("thead th").nth(1)
    header.locator("button").click()
    expect(header).to_have_attribute("aria-sort", "ascending")
    first = values(table)
    header.locator("button").click()
    expect(header).to_have_attribute("aria-sort", "descending")
    assert first == sorted(first)
    assert values(table) == first[::-1]
    assert first[0] < first[1]


def values(table: Locator) -> list[float]:
    cells = table.locator("tbody tr td:nth-child(2)").all()
    return [float(cell.get_attribute("data-sort") or "nan") for cell in cells]


def runs_nothing_but_its_own(page: Page, heard: Heard, file: Path) -> None:
    fetched_alone(heard, file)
    assert page.title() == "2 scenarios simulated"
    expect(page.locator("h2", has_text=EVIL)).to_have_count(1)
    expect(page.locator(".modebar-btn[data-title^='Share']")).to_have_count(0)


def shows_every_broker_of_many(page: Page) -> None:
    part = page.locator("section", has=page.get_by_role("heading", name="Many brokers"))
    run = part.locator("details", has=page.get_by_role("heading", name="threshold"))
    run.locator("summary").click()
    drawn(run.locator(".plot"))
    assert run.locator(".heatmaplayer image").count() == 1
    tells_of_a_move(page, run.locator(".plot"))
    browser = page.context.browser
    assert browser
    assert colours(browser.new_page(), run.locator(".plot").screenshot()) > MANY_COLOURS


def follows_the_system_to_dark(page: Page) -> None:
    title = page.locator(".ytitle").first
    light = title.evaluate("text => getComputedStyle(text).fill")
    page.emulate_media(color_scheme="dark")
    expect(title).not_to_have_css("fill", light)


def test_the_report_opens_alone_and_answers_the_mouse(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    small_comparison.write(file)
    with chromium() as browser, opened(browser, file) as (page, heard):
        draws_only_what_is_opened(page)
        tells_why_a_bundle_moved(page)
        sorts_by_a_column(page)
        shows_every_broker_of_many(page)
        follows_the_system_to_dark(page)
        runs_nothing_but_its_own(page, heard, file)
