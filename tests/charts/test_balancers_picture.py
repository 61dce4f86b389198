"""The picture and the table of balancers that were measured side by side."""

from typing import Any
from xml.etree import ElementTree as ET

from balancers_picture import picture, table

RUN: dict[str, Any] = {
    "balancer": "attach",
    "manager": "modular",
    "seconds": 60.0,
    "max_over_mean": [(5.0, 3.0), (30.0, 1.02)],
    "near_after_s": 30.0,
    "moves": [16.0, 17.0],
    "pause_p50_s": 0.0,
    "pause_p99_s": 1.25,
    "failed_sends": 0,
    "cores_of_ours": 0.0202,
    "load_average": 2.25,
    "commit": "abc1234",
    "cores": [0.5, 0.25],
    "cores_used_at_the_end": [0.2, 0.2],
}


def test_a_row_tells_what_was_measured() -> None:
    never = {**RUN, "balancer": "avg", "near_after_s": None, "moves": [], "cores_of_ours": None}
    for unknown in ("load_average", "cores"):
        del never[unknown]
    never |= {"max_over_mean": [(5.0, 3.0), (60.0, 2.5)], "pause_p50_s": None, "pause_p99_s": None}
    *_, ours, other = table([RUN, never]).splitlines()
    assert ours == (
        "| loadmanager attach | modular | 60 s | 30 s | 1.02 | 2 | under 0.1 s | 1.25 s | 0 "
        "| 80 % | 2.0 % of a core | 2.2 | abc1234 |"
    )
    assert other == (
        "| AvgShedder | modular | 60 s | not | 2.50 | 0 | - | - | 0 | not noted | in the broker "
        "| not noted | abc1234 |"
    )


def test_the_picture_has_a_line_and_a_name_for_each_run() -> None:
    found = ET.fromstring(picture([RUN, {**RUN, "balancer": "transfer"}]))  # noqa: S314
    (ours, theirs) = found.iter("{http://www.w3.org/2000/svg}polyline")
    # The fullest broker may have 1 to 3 times the mean: from the bottom line to the top one.
    (_, top), (_, bottom) = (map(float, one.split(",")) for one in ours.attrib["points"].split())
    assert top < bottom
    assert ours.attrib["stroke"] != theirs.attrib["stroke"]
    names = [one.text for one in found.iter("{http://www.w3.org/2000/svg}text")]
    assert names[-2:] == ["loadmanager attach", "TransferShedder"]
