from pathlib import Path

import pytest
from scenario_texts import SOUND, changed, loaded, told

AGAIN = """
[[load]]
namespace = "public/default"
topics = 1
msgs_in_per_s = 1
"""


FAULTS = Path(__file__).with_name("scenario_faults.txt").read_text("utf-8").split("\n\n")[1:]


@pytest.mark.parametrize("case", FAULTS)
def test_values_that_do_not_go_together_are_told(tmp_path: Path, case: str) -> None:
    text, _, fault = case.partition("\n=> ")
    text = text[2:] + "\n" + SOUND if text.startswith("^\n") else SOUND + text
    assert [one for one in told(tmp_path, text) if one.startswith(fault.strip())]


def test_there_has_to_be_a_load_and_a_broker_at_some_time(tmp_path: Path) -> None:
    (fault,) = told(tmp_path, SOUND[: SOUND.index("[[load]]")])
    assert fault.startswith("load is not set; expected [[load]] sections, or a trace: there is")
    (fault,) = told(tmp_path, changed("count = 2", "count = 2\njoined = false"))
    assert fault == (
        "brokers[0].joined = false; expected true for some class, or an event of kind "
        "join: there is never a broker"
    )


def test_the_first_load_of_a_namespace_has_to_say_where_its_bundles_are(tmp_path: Path) -> None:
    text = SOUND + "placed_on = ['small-2']\n" + AGAIN
    assert len(loaded(tmp_path, text).load) == 2
    assert len(loaded(tmp_path, text + "placed_on = ['small-2']").load) == 2


def test_a_broker_can_leave_come_back_drain_and_crash_while_it_drains(tmp_path: Path) -> None:
    steps = ["leave", "join", "restart", "silence", "drain", "crash", "join"]
    text = SOUND + "".join(
        f"[[events]]\nkind = '{kind}'\nat_s = {at}\nbrokers = ['small-1']\n"
        + ("for_s = 1\n" if kind == "silence" else "")
        for at, kind in enumerate(steps)
    )
    assert [event.kind for event in loaded(tmp_path, text).events] == steps
