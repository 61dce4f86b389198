from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import plotly.graph_objects as go
import pytest
import small_comparison

from loadmanager.simulator.picture import Picture
from loadmanager.simulator.score_charts import highest_loads, overview
from loadmanager.simulator.simulation_jobs import Compared, Spread


def with_median(one: Compared, score: str, median: float | None) -> Compared:
    return replace(one, spreads={**one.spreads, score: Spread(median, median, median)})


def compared(*medians: float | None) -> dict[str, Compared]:
    """Return strategies a, b, ... whose maxima over means have these medians."""
    one = small_comparison.found()[0]
    return {
        name: with_median(one, "max_over_mean", median)
        for name, median in zip("abcdef", medians, strict=False)
    }


def heat(results: Mapping[str, Mapping[str, Compared]]) -> Mapping[str, Any]:
    return overview(results).data[0]


def test_colours_of_a_scenario_go_from_its_best_to_its_worst() -> None:
    found = heat({"one": compared(1.0, 1.5, 2.0), "other": compared(10.0, 10.0, 20.0)})
    assert found["z"] == [[0.0, 0.0], [0.5, 0.0], [1.0, 1.0]]
    assert found["text"] == [["1", "10"], ["1.50", "10"], ["2", "20"]]


def test_what_never_came_about_is_worst_and_what_did_not_run_is_a_gap() -> None:
    found = heat({"one": compared(1.0, None, 2.0), "other": compared(3.0)})
    assert found["z"] == [[0.0, 0.0], [1.0, None], [1.0, None]]
    assert found["text"] == [["1", "3"], ["never", ""], ["2", ""]]


def test_the_menu_has_every_score_of_the_table_and_shows_its_medians() -> None:
    results = {"one": compared(1.0, 2.0), "other": compared(2.0, 1.0)}
    layout: dict[str, Any] = dict(overview(results).layout)
    buttons = layout["updatemenus"][0]["buttons"]
    assert buttons[0]["label"] == "max/mean"
    assert buttons[0]["args"] == [{"z": [[[0, 1], [1, 0]]], "text": [[["1", "2"], ["2", "1"]]]}]
    assert [button["label"] for button in buttons][4:6] == [
        "overload (broker-min)",
        "time to balance (s)",
    ]


def pictures() -> dict[str, Picture]:
    return {
        job.strategy.name: seen.picture
        for job, seen in small_comparison.results()
        if job.name == "few" and seen.picture
    }


def test_every_strategy_has_a_line_and_the_bound_one() -> None:
    chart = highest_loads(pictures())
    assert [trace["name"] for trace in chart.data] == [*pictures(), "lower bound"]
    assert chart.summary.startswith("At the end ")


@pytest.mark.parametrize("chart", ["overview", "loads"])
def test_plotly_knows_every_word(chart: str) -> None:
    made = (
        overview({"one": compared(1.0, None)}) if chart == "overview" else highest_loads(pictures())
    )
    figure = go.Figure(data=list(made.data), layout=dict(made.layout))
    assert len(figure.data) == len(made.data)
