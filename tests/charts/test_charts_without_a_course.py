"""Charts that would show nothing are not drawn: a text says so."""

from collections.abc import Mapping

import pytest

from loadmanager.charts import Chart, Json

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
def test_a_chart_is_drawn_if_there_is_something_to_see(
    trace: Mapping[str, Json], drawn: bool
) -> None:
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
