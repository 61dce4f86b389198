import re
from pathlib import Path

import pytest
import small_comparison
from small_comparison import AVG, EVIL, FAILURE, THRESHOLD

from loadmanager.simulator.report import written
from loadmanager.simulator.results import FIRST_SCORES, SCORE_DOCS
from loadmanager.simulator.simulation_jobs import RANKING, ranked


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    small_comparison.write(path)
    return path.read_text(encoding="utf-8")


def text_of(report: str) -> str:
    return re.sub(r"(?s)<(script|style).*?</\1>", "", report)


def test_the_same_results_give_the_same_bytes(tmp_path: Path, report: str) -> None:
    size = small_comparison.write(tmp_path / "again.html")
    again = (tmp_path / "again.html").read_bytes()
    assert again == report.encode()
    assert len(again) == size < 5_500_000  # plotly.js has fewer


def test_titles_and_reasons_of_a_scenario_are_only_texts(report: str) -> None:
    for text in (EVIL, FAILURE, "<b>bold</b>"):
        assert text not in report
    assert report.count("&lt;script&gt;document.title") == 2  # heading and link
    assert FAILURE.replace("<", "&lt;").replace(">", "&gt;") in report


def test_the_page_shows_settings_scores_strategies_and_verdicts(report: str) -> None:
    page = text_of(report)
    top = page.split("</section>")[0]
    for name, said in (("seeds", "1, 2"), ("mode", "safe"), ("set", "threshold=0.1")):
        assert f"<dt>{name}</dt><dd>{said}</dd>" in top
    for doc in SCORE_DOCS.values():
        assert f"<dt>{doc.title}" in page
        assert page.count(f"<span>{doc.title}</span>") >= 2
    for name in (THRESHOLD, AVG):
        assert page.count(f'<th scope="row">{name}</th>') >= 4
    assert "held 4, failed 2, known failure shown 2" in page
    assert page.count('<td class="good">held</td>') == 4
    assert page.count('<td class="bad">failed</td>') == 2
    assert page.count('<td class="known">known failure shown') == 2
    anchors = re.findall(r'href="#([^"]+)"', page)
    assert len(anchors) == len(set(anchors)) == 4
    for anchor in anchors:
        assert f'<section id="{anchor}">' in page
    assert RANKING in page
    rows = re.findall(r'<th scope="row">([^<]+)</th>', page.split("<h2>Many brokers</h2>")[1])[:2]
    many = [one for one in small_comparison.found() if one.name == "many"]
    assert rows == [one.strategy.name for one in ranked(many)]


def test_medians_and_their_spread_are_those_of_the_seeds(report: str) -> None:
    for one in small_comparison.found():
        for score in FIRST_SCORES:
            spread = one.spreads[score]
            if spread.median is not None:
                assert f">{written(spread.median)}" in report
            if spread.least is not None and spread.most is not None:
                least, most = written(spread.least), written(spread.most)
                assert least == most or f"<small>{least} to {most}</small>" in report


def test_a_report_of_one_scenario_is_named_for_it(tmp_path: Path) -> None:
    small_comparison.write(tmp_path / "one.html", "many")
    page = (tmp_path / "one.html").read_text(encoding="utf-8")
    assert "<title>Simulated: Many brokers</title>" in page


def test_scores_are_written_as_people_read_them() -> None:
    values = (float("inf"), 0.0, 3.0, 1.1, 0.04567, 12345.6)
    assert [*map(written, values)] == ["never", "0", "3", "1.10", "0.046", "12,346"]
