"""The pipeline's report in a real Chromium: it opens from a file, alone, and all is drawn."""

from pathlib import Path

import pytest
import small_report
from chromium import MANY_COLOURS, chromium, colours, fetched_alone, opened
from playwright.sync_api import Locator, Page, expect

pytestmark = pytest.mark.browser
CHARTS = 15


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("report") / "report.html"
    small_report.write(file)
    return file


def draw_all(page: Page) -> list[Locator]:
    charts = page.locator(".plot").all()
    for chart in charts:
        chart.scroll_into_view_if_needed()
        expect(chart).to_have_attribute("data-state", "drawn")
    return charts


def every_chart_has_something_in_it(page: Page, blank: Page) -> None:
    charts = draw_all(page)
    assert len(charts) == CHARTS
    for chart in charts:
        assert colours(blank, chart.screenshot()) > MANY_COLOURS, chart.get_attribute("aria-label")
        assert chart.get_attribute("role") == "img"


def names_are_shown_and_nothing_else(page: Page) -> None:
    assert page.title() == f"Load of cluster {small_report.EVIL}"
    expect(page.locator(".plot .bartext", has_text=small_report.EVIL)).to_have_count(1)
    assert page.locator("script", has_text="alert(1)").count() == 0


def what_is_drawn_can_be_read(page: Page) -> None:
    section = page.locator("section", has=page.get_by_role("heading", name="Balance over time"))
    table = section.locator("table")
    expect(table).to_be_hidden()
    section.locator("summary").click()
    expect(table).to_be_visible()
    expect(table.locator("tbody tr")).to_have_count(3)


def other_strategies_are_beside_the_active_one(page: Page) -> None:
    heading = page.get_by_role("heading", name="Distance from the best possible")
    section = page.locator("section", has=heading)
    expect(section.locator(".plot")).to_have_count(1)
    names = section.locator("tbody tr th").all_inner_texts()
    assert [name.split("\n")[0].split(" 4")[0] for name in names] == [
        "the active one", "JointShedder", "ThresholdShedder",
    ]  # fmt: skip


def conclusions_come_first(page: Page) -> None:
    first = page.locator("section").first
    expect(first.get_by_role("heading")).to_have_text("What to do next")
    told = first.locator("li").all_inner_texts()
    assert 3 <= len(told) <= 6
    assert told[0].startswith("Act: ")


def a_part_that_was_not_made_says_how_to(page: Page) -> None:
    section = page.locator("section", has=page.get_by_role("heading", name="What is to come"))
    expect(section.locator("code")).to_have_text(
        "loadmanager pipeline replay --out '/tables/<out>'"
    )


def test_the_report_opens_alone_and_draws_every_chart(report: Path) -> None:
    with chromium() as browser, opened(browser, report) as (page, heard):
        page.set_viewport_size({"width": 1280, "height": 900})
        every_chart_has_something_in_it(page, browser.new_page())
        conclusions_come_first(page)
        names_are_shown_and_nothing_else(page)
        what_is_drawn_can_be_read(page)
        other_strategies_are_beside_the_active_one(page)
        a_part_that_was_not_made_says_how_to(page)
        fetched_alone(heard, report)


def table_overflows(page: Page) -> list[str]:
    found: list[str] = page.evaluate(
        """() => [document.documentElement, ...document.querySelectorAll(".scrolled")]
            .filter((place) => place.clientWidth && place.scrollWidth > place.clientWidth + 1)
            .map((place) => `${place.ariaLabel ?? "page"}: ${place.scrollWidth}`)"""
    )
    return found


def charts_outside(page: Page) -> list[str]:
    found: list[str] = page.evaluate(
        """() => [...document.querySelectorAll(".plot")].filter((place) => {
            const drawing = place.querySelector(".main-svg");
            return place.clientWidth
                && !(drawing && drawing.getBoundingClientRect().width <= place.clientWidth + 1);
        }).map((place) => place.ariaLabel)"""
    )
    return found


PAPER_PX = 718
"""What A4 is wide between margins of a centimetre."""


def test_nothing_is_cut_off_on_screens_and_on_paper(report: Path) -> None:
    with chromium() as browser, opened(browser, report, dark=True) as (page, heard):
        assert page.locator('meta[name="viewport"][content*="width=device-width"]').count() == 1
        for width in (1400, 800):
            page.set_viewport_size({"width": width, "height": 1000})
            draw_all(page)
            page.locator("details > summary").evaluate_all("all => all.forEach(one => one.click())")
            expect(page.locator("details[open]").first).to_be_visible()
            assert table_overflows(page) == []
            assert charts_outside(page) == []
            page.locator("details > summary").evaluate_all("all => all.forEach(one => one.click())")
        page.set_viewport_size({"width": 390, "height": 844})  # a phone, where tables are scrolled
        draw_all(page)
        assert charts_outside(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.set_viewport_size({"width": PAPER_PX, "height": 1000})
        page.emulate_media(media="print", color_scheme="light")
        drawn = "() => [...document.querySelectorAll('.main-svg')]"
        page.wait_for_function(f"{drawn}.every((one) => one.clientWidth <= {PAPER_PX})")
        draw_all(page)
        assert table_overflows(page) == []
        assert charts_outside(page) == []
        white = page.evaluate(
            "getComputedStyle(document.documentElement).getPropertyValue('--raised')"
        )
        assert white == "#ffffff"
        assert heard.errors == []


def test_charts_are_drawn_before_one_has_read_so_far(report: Path) -> None:
    """A print has them all."""
    with chromium() as browser, opened(browser, report) as (page, _):
        for chart in page.locator(".plot").all():
            expect(chart).to_have_attribute("data-state", "drawn")
        assert page.evaluate("scrollY") == 0
