import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
import small_comparison
from pictured_runs import a_move, a_run, a_timeline
from small_comparison import AVG, EVIL, FAILURE, THRESHOLD

from loadmanager.charts import Chart
from loadmanager.simulator.picture import (
    CELLS,
    EVENTS,
    LINES,
    LISTED,
    MARKS,
    POINTS,
    TimeAxis,
    chart_of,
    picture_of,
    thinned,
)
from loadmanager.simulator.report import written
from loadmanager.simulator.results import FIRST_SCORES, SCORE_DOCS, Run
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


NAN = float("nan")


def the_chart(run: Run) -> Chart:
    return chart_of(run, thinned(run.timeline), TimeAxis.of(run.duration_s))


def traces(run: Run) -> dict[str, Any]:
    return {str(trace["name"]): trace for trace in the_chart(run).data}


def wavy(moments: int, brokers: int) -> np.ndarray:
    rng = np.random.default_rng(1)
    return np.asarray(0.5 + 0.1 * rng.standard_normal((moments, brokers)))


def test_thinning_loses_no_peak_and_shows_few_moments_as_they_are() -> None:
    load = np.full((1000, 3), 0.5)
    load[777, 1] = 1.4
    loads = thinned(a_timeline(load))
    assert len(loads.time_s) <= POINTS
    assert loads.highest.max() == pytest.approx(1.4)
    assert loads.load[:, [0, 2]].max() == pytest.approx(0.5)
    interval = int(loads.load[:, 1].argmax())
    assert loads.time_s[interval] <= 777 * 60.0 < loads.time_s[interval + 1]
    loads = thinned(a_timeline(load[770:790]))
    assert loads.every == 1
    np.testing.assert_allclose(loads.load, load[770:790], rtol=1e-6)


def test_few_brokers_have_a_line_each_and_many_a_row_of_colours_each() -> None:
    found = traces(a_run(wavy(60, LINES)))
    assert f"large-{LINES}" in found
    assert "every broker" not in found
    load = wavy(300, 200)
    load[10, 41] = 1.7
    found = traces(a_run(load, a_move(70.0)))
    assert "highest" in found
    heat = found["every broker"]
    assert len(heat["y"]) == len(heat["z"]) == 200
    assert max(heat["z"][41]) == pytest.approx(1.7)
    assert len(heat["z"]) * len(heat["x"]) <= CELLS
    assert all(len(row) == len(heat["x"]) for row in heat["z"])
    # A mark stands in the row of its broker, above the colours.
    assert found["shed: overloaded"]["y"] == ["large-1"]
    assert found["shed: overloaded"]["yaxis"] == heat["yaxis"] == "y2"
    names = list(found)
    assert names.index("every broker") < names.index("shed: overloaded")


def test_a_move_is_marked_at_its_source_with_its_reason_on_hover() -> None:
    load = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]])
    found = traces(a_run(load, a_move(70.0, 3), a_move(130.0, 4, placed=True)))
    mark = found["shed: overloaded"]
    assert mark["x"] == [pytest.approx(70 / 60, abs=1e-3)]
    assert mark["y"] == [pytest.approx(0.8)]
    assert mark["text"][0] == (
        "<b>shed: overloaded</b>, minute 1.17<br>"
        "shop/orders/0x00000003_0x00000004 from large-1 to large-2<br>"
        "    1,500 messages/s, 0.00 MB/s, clients waited 2.5 s in all"
    )
    assert found["placed: unowned"]["y"] == [pytest.approx(0.3)]
    assert "from no broker to large-2" in found["placed: unowned"]["text"][0]


def test_moves_of_one_moment_broker_and_reason_share_a_mark_that_tells_the_largest() -> None:
    moves = [a_move(60.0, number) for number in range(LISTED + 3)]
    (text,) = traces(a_run(wavy(60, 3), *moves))["shed: overloaded"]["text"]
    assert f"{LISTED + 3} bundles" in text
    assert text.count("messages/s") == LISTED
    assert f"0x{LISTED + 2:08x}_" in text
    assert text.endswith("and 3 with less traffic")


def test_only_the_largest_of_many_marks_are_shown_and_the_bars_count_all() -> None:
    moves = [a_move(10.0 * number, number) for number in range(MARKS + 40)]
    run = a_run(wavy(120, 3), *moves)
    found = traces(run)
    assert len(found["shed: overloaded"]["x"]) == MARKS
    assert sum(found["moves"]["y"]) == MARKS + 40
    assert "40 moves with less traffic have no mark; the bars count all." in the_chart(run).summary


def test_events_of_one_moment_share_a_line_and_lines_are_limited() -> None:
    def layout(run: Run) -> dict[str, Any]:
        return dict(the_chart(run).layout)

    happened = [(60.0, "a <b> crashes"), (60.0, "c joins"), (120.0, "d joins")]
    run = a_run(wavy(60, 3), happened=happened)
    assert traces(run)["events"]["text"] == ["a &lt;b&gt; crashes<br>c joins", "d joins"]
    shapes = layout(run)["shapes"]
    dotted = [shape["x0"] for shape in shapes if shape.get("line", {}).get("dash") == "dot"]
    assert dotted == [1.0, 2.0]
    happened = [(10.0 * number, "x") for number in range(EVENTS + 20)]
    assert len(layout(a_run(wavy(60, 3), happened=happened))["shapes"]) == EVENTS + 2
    assert layout(a_run(wavy(60, 3), happened=(), warm_up_s=0.0))["shapes"] == [
        shape for shape in layout(a_run(wavy(60, 3)))["shapes"] if shape["y0"] == shape["y1"] == 1
    ]


def test_the_words_of_a_chart_say_what_is_to_be_seen() -> None:
    load = np.array([[0.9, 0.1], [1.3, 0.2], [0.7, 0.3]])
    assert the_chart(a_run(load, a_move(70.0))).summary == (
        "Brokers: 2, moves: 1. Highest load 130% on large-1 at minute 1, 70% at the end; "
        "the lower bound at the end is 40%."
    )
    load[1:] = NAN  # No broker for a while.
    assert "no broker at the end" in the_chart(a_run(load)).summary


@pytest.mark.parametrize("brokers", [3, 40])
def test_plotly_knows_every_word_of_a_figure(brokers: int) -> None:
    chart = the_chart(a_run(wavy(100, brokers), a_move(70.0), a_move(80.0, placed=True)))
    figure = go.Figure(data=list(chart.data), layout=dict(chart.layout))
    assert len(figure.data) == len(chart.data)


def test_a_picture_of_a_day_of_200_brokers_is_small() -> None:
    moves = [a_move(40.0 * number, number) for number in range(2000)]
    picture = picture_of(a_run(wavy(1440, 200), *moves))
    packed = re.search(r"chart\">(.+?)</script>", picture)
    assert packed
    assert json.loads(zlib.decompress(base64.b64decode(packed[1])))["data"]
    assert len(picture) < 100_000
