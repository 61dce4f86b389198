import base64
import hashlib
import json
import re
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from loadmanager.charts import (
    Best,
    Cell,
    Chart,
    Column,
    Json,
    MissingCharts,
    check_place,
    contents,
    folded,
    joined,
    numbers,
    page,
    section,
    shown,
    table,
    tag,
    write_page,
)

A_CHART = Chart(title="Load", summary="It rises.", data=[{"type": "bar", "y": [1, 2.5, None]}])


def drawn(chart: Chart) -> Mapping[str, object]:
    packed = re.search(r'<script type="application/x-chart">(.+?)</script>', chart.html())
    assert packed
    figure: Mapping[str, object] = json.loads(zlib.decompress(base64.b64decode(packed[1])))
    return figure


def test_text_is_escaped_and_markup_is_not() -> None:
    inner = tag("b", "<script>alert('x')</script> & more")
    assert tag("p", inner, title='"quoted"') == (
        '<p title="&quot;quoted&quot;"><b>&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; '
        "&amp; more</b></p>"
    )
    assert joined(["<", tag("br")]) == "&lt;<br>"


def test_attributes_that_are_none_or_false_are_left_out() -> None:
    assert tag("details", class_=None, open=False) == "<details></details>"
    assert tag("details", open=True, aria_label="x", tabindex=0) == (
        '<details open aria-label="x" tabindex="0"></details>'
    )


def test_a_chart_says_in_words_what_is_to_be_seen_and_carries_its_figure() -> None:
    written = A_CHART.html()
    assert 'role="img" aria-label="Load. It rises."' in written
    assert "<figcaption><strong>Load</strong> <span>It rises.</span></figcaption>" in written
    assert drawn(A_CHART) == {"data": [{"type": "bar", "y": [1, 2.5, None]}], "layout": {}}


def test_numbers_are_rounded_and_what_is_not_finite_is_a_gap() -> None:
    assert numbers(np.array([0.12349, np.nan, np.inf, 2])) == [0.123, None, None, 2.0]


def test_texts_that_plotly_would_take_for_markup_are_shown_as_they_are() -> None:
    assert shown('<a href="x">') == '&lt;a href="x"&gt;'


def test_a_table_marks_the_best_of_a_column_for_eyes_and_for_ears() -> None:
    columns = [Column(name="strategy"), Column(name="moves", unit="count", best=Best.LEAST)]
    rows = [[Cell("a"), Cell("3", 3)], [Cell("b"), Cell("1", 1, note="1 to 2")]]
    written = table("Scores", columns, rows)
    best = '<td class="number best" data-sort="1.0">1 <small>1 to 2</small>'
    assert best + '<span class="unseen"> (best)</span></td>' in written
    assert written.count("(best)") == 1
    assert '<th scope="row">a</th>' in written
    assert '<th scope="col" aria-sort="none">' in written
    assert "<caption>Scores</caption>" in written


def test_nothing_is_best_where_all_are_equal_or_unknown() -> None:
    columns = [Column(name="strategy"), Column(name="moves", best=Best.MOST)]
    equal = [[Cell("a"), Cell("3", 3)], [Cell("b"), Cell("3", 3)]]
    assert "(best)" not in table("Scores", columns, equal)
    unknown = [[Cell("a"), Cell("never", float("inf"))], [Cell("b"), Cell("-")]]
    assert "(best)" not in table("Scores", columns, unknown)


def test_never_sorts_after_every_number() -> None:
    rows = [[Cell("a"), Cell("never", float("inf"))]]
    written = table("Scores", [Column(name="strategy"), Column(name="time")], rows)
    assert 'data-sort="Infinity">never</td>' in written


def test_a_header_and_what_is_unknown_stand_like_the_numbers_of_their_column() -> None:
    rows = [[Cell("a"), Cell("3", 3), Cell("good")], [Cell("b"), Cell("-"), Cell("bad")]]
    columns = [Column(name="strategy"), Column(name="moves"), Column(name="trust")]
    written = table("Scores", columns, rows)
    assert re.findall(r'<th( class="number")? scope="col"', written) == ["", ' class="number"', ""]
    assert '<td class="number">-</td><td>bad</td>' in written


def test_contents_point_to_the_sections() -> None:
    title = "Scores & <more>"
    assert 'href="#part-scores-more"' in contents([(title, "")])
    assert 'href="#scores"' in contents([(title, "scores")])
    assert section(title, anchor="scores").startswith('<section id="scores">')
    assert section(title, "x").startswith('<section id="part-scores-more"><h2>Scores &amp; &lt;')
    assert "<summary><h3>Run</h3> <small>seed 1</small></summary>" in folded("Run", note="seed 1")


def test_a_page_runs_its_own_scripts_alone_and_fetches_nothing() -> None:
    written = page("Report", A_CHART.html())
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', written)
    assert policy
    assert policy[1].startswith("default-src &#x27;none&#x27;; script-src &#x27;sha256-")
    scripts = re.findall(r"<script>(.+?)</script>", written, re.DOTALL)
    assert len(scripts) == 2
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"sha256-{digest}" in policy[1]


def test_a_title_cannot_break_out_of_the_head() -> None:
    written = page("</title><script>alert(1)</script>")
    assert "<script>alert(1)" not in written
    assert written.count("&lt;script&gt;alert(1)") == 2


def test_the_same_page_has_the_same_bytes_and_its_size_is_told(tmp_path: Path) -> None:
    one, other = tmp_path / "one.html", tmp_path / "other.html"
    size = write_page(one, "Report", A_CHART.html())
    write_page(other, "Report", A_CHART.html())
    assert one.read_bytes() == other.read_bytes()
    assert len(one.read_bytes()) == size
    assert sorted(tmp_path.iterdir()) == [one, other]


def test_a_page_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder") as caught:
        write_page(tmp_path / "folder", "Report")
    assert caught.value.filename == str(tmp_path / "folder")
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]


def test_a_place_is_tried_without_a_trace(tmp_path: Path) -> None:
    page_there = tmp_path / "there.html"
    page_there.write_text("kept")
    check_place(page_there)
    check_place(tmp_path / "new.html")
    assert list(tmp_path.iterdir()) == [page_there]
    assert page_there.read_text() == "kept"


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("missing/x.html", "missing is no folder to write to"),
        ("", "no file that a page could replace"),
        ("x" * 250 + ".html", "nothing may be written to"),
        ("/proc/x.html", "nothing may be written to /proc"),
    ],
)
def test_a_place_that_takes_no_page_is_refused(tmp_path: Path, place: str, told: str) -> None:
    with pytest.raises(OSError, match=told) as caught:
        check_place(tmp_path / place)
    assert caught.value.filename == str(tmp_path / place)
    assert not list(tmp_path.iterdir())


def test_without_plotly_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(MissingCharts, match=re.escape("'loadmanager[simulator]'")):
        page("Report")


# Charts that would show nothing are not drawn: a text says so.

LINE: Mapping[str, Json] = {"type": "scatter", "mode": "lines"}
DOTS: Mapping[str, Json] = {"type": "scatter", "mode": "markers"}


@pytest.mark.parametrize(
    ("trace", "drawn"),
    [
        ({**LINE, "y": [0.1, 0.2]}, False),
        ({**LINE, "y": [0.1, None, 0.2]}, False),
        ({**LINE, "y": [0.1, 0.3, 0.2]}, True),
        ({**DOTS, "y": []}, False),
        ({**DOTS, "y": [0.1]}, True),
        ({"type": "bar", "y": [None]}, False),
        ({"type": "bar", "orientation": "h", "y": ["a"], "x": [None]}, False),
        ({"type": "bar", "orientation": "h", "y": ["a"], "x": [3]}, True),
        ({"type": "heatmap", "z": [[0.1, 0.2], [0.3, None]]}, False),
        ({"type": "heatmap", "z": [[0.1, 0.2, 0.3]]}, True),
        ({"type": "heatmap", "z": []}, False),
    ],
)
def test_a_chart_is_drawn_if_there_is_something(trace: Mapping[str, Json], drawn: bool) -> None:
    text = Chart(title="Load", summary="Of all.", data=[trace]).html()
    assert ('class="plot"' in text) == drawn
    assert ("Load</strong> is not drawn: there are fewer than three points" in text) != drawn


def test_bars_beside_lines_do_not_make_a_course_of_two_points() -> None:
    data: list[Mapping[str, Json]] = [{**LINE, "y": [1.0, 2.0]}, {"type": "bar", "y": [3, 4]}]
    assert 'class="plot"' not in Chart(title="Load", summary="", data=data).html()
    assert 'class="plot"' in Chart(title="Load", summary="", data=data[1:]).html()


def test_one_trace_with_a_course_is_enough() -> None:
    data = [{**LINE, "y": [1.0]}, {**LINE, "y": [1.0, 2.0, 3.0]}]
    assert 'class="plot"' in Chart(title="Load", summary="", data=data).html()
