from pathlib import Path

import pytest

from loadmanager.simulator.scenario import ScenarioError
from loadmanager.simulator.traces import Trace, read_trace

SOUND = """\
time_s,topic,msg_rate_in,msg_rate_out,msg_throughput_in,msg_throughput_out
100,a,1,2,3,4
100,non-persistent://t/n/b,5,6,7,8
160,non-persistent://t/n/b,50,60,70,80
160,a,10,20,30,40
"""


def csv_file(folder: Path, text: str | bytes, name: str = "rates.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def told(path: Path) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        read_trace(path)
    return [fault.replace(f"{path.parent}/", "") for fault in caught.value.faults]


def assert_is_sound(trace: Trace) -> None:
    assert trace.topics == ("persistent://public/default/a", "non-persistent://t/n/b")
    assert trace.times_s.tolist() == [0, 60]
    assert trace.rates.tolist() == [
        [[1, 2, 3, 4], [5, 6, 7, 8]],
        [[10, 20, 30, 40], [50, 60, 70, 80]],
    ]
