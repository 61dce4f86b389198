import re
from pathlib import Path

import pytest
import small_comparison
from small_comparison import AVG, EVIL, FAILURE, THRESHOLD

from loadmanager.simulator.score_charts import FIRST, written
from loadmanager.simulator.scores import SCORE_DOCS
from loadmanager.simulator.simulation_jobs import RANKING, ranked

PLOTLY_BYTES = 5_500_000
"""More than plotly.js has."""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    small_comparison.write(path)
    return path.read_text(encoding="utf-8")


def text_of(report: str) -> str:
    """Return what is on the page besides scripts and style."""
    return re.sub(r"(?s)<(script|style).*?</\1>", "", report)


def test_the_same_results_give_the_same_bytes(tmp_path: Path, report: str) -> None:
    size = small_comparison.write(tmp_path / "again.html")
    again = (tmp_path / "again.html").read_bytes()
    assert again == report.encode()
    assert len(again) == size < PLOTLY_BYTES


def test_a_title_with_a_script_is_only_a_text(report: str) -> None:
    assert EVIL not in report
    assert "<b>bold</b>" not in report
    assert report.count("&lt;script&gt;document.title") == 2  # heading and link


def test_the_failure_that_a_scenario_states_is_a_text_too(report: str) -> None:
    assert FAILURE not in report
    assert FAILURE.replace("<", "&lt;").replace(">", "&gt;") in report


def test_every_score_is_explained_and_shown_for_every_strategy(report: str) -> None:
    page = text_of(report)
    for doc in SCORE_DOCS:
        assert f"<dt>{doc.title}" in page
        assert page.count(f"<span>{doc.title}</span>") >= 2
    for name in (THRESHOLD, AVG):
        assert page.count(f'<th scope="row">{name}</th>') >= 4


def test_what_a_column_says_on_hover_needs_no_other_column(report: str) -> None:
    said = re.findall(r'<button type="button" title="([^"]+)"', report)
    assert said
    for words in said:
        assert not words.startswith(("The same", "How much of that", "Messages that came then"))
    largest = "Largest demand, mean over time; 1 is full."
    assert f"{largest} The same, 95 % of the time at most. Less is better." in said
    assert f"{largest} The same, mean over the last tenth. Less is better." in said


def test_medians_and_their_spread_are_those_of_the_seeds(report: str) -> None:
    for one in small_comparison.found():
        for score in FIRST:
            spread = one.spreads[score]
            if spread.median is not None:
                assert f">{written(spread.median)}" in report
            if None not in (spread.least, spread.most):
                assert spread.least is not None
                assert spread.most is not None
                least, most = written(spread.least), written(spread.most)
                assert least == most or f"<small>{least} to {most}</small>" in report


def test_expectations_say_whether_they_held(report: str) -> None:
    page = text_of(report)
    assert "held 4, failed 2, known failure shown 2" in page
    assert page.count('<td class="good">held</td>') == 4
    assert page.count('<td class="bad">failed</td>') == 2
    assert page.count('<td class="known">known failure shown') == 2


def test_settings_seeds_and_modes_are_told_at_the_top(report: str) -> None:
    top = text_of(report).split("Overview</h2>")[0]
    for name, said in (("seeds", "1, 2"), ("mode", "safe"), ("set", "threshold=0.1")):
        assert f"<dt>{name}</dt><dd>{said}</dd>" in top


def test_links_of_the_contents_lead_somewhere(report: str) -> None:
    anchors = re.findall(r'href="#([^"]+)"', text_of(report))
    assert len(anchors) == len(set(anchors)) == 5
    for anchor in anchors:
        assert f'<section id="{anchor}">' in report


def test_a_report_of_one_scenario_is_named_for_it_and_has_no_overview(tmp_path: Path) -> None:
    small_comparison.write(tmp_path / "one.html", "many")
    page = (tmp_path / "one.html").read_text(encoding="utf-8")
    assert "<title>Simulated: Many brokers</title>" in page
    assert "Overview" not in text_of(page)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("inf"), "never"),
        (0.0, "0"),
        (3.0, "3"),
        (1.1, "1.10"),
        (0.04567, "0.046"),
        (12345.6, "12,346"),
    ],
)
def test_scores_are_written_as_people_read_them(value: float, expected: str) -> None:
    assert written(value) == expected


def test_strategies_stand_best_first_and_the_page_says_by_what(report: str) -> None:
    assert RANKING in report
    part = text_of(report).split("<h2>Many brokers</h2>")[1]
    rows = re.findall(r'<th scope="row">([^<]+)</th>', part)[:2]
    many = [one for one in small_comparison.found() if one.name == "many"]
    assert rows == [one.strategy.name for one in ranked(many)]
