"""`loadmanager attach --strategy`: the strategies of sidecars, within the limits of attach."""

import json
import re
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path

import pytest
from aiohttp import web
from attach_process import attached
from fake_pulsar import EXTENSIBLE, FakeBroker, FakePulsar, metrics

from loadmanager.config.strategies import SHEDDER_NAMES
from tests.attach.conftest import attach, seen

EAGER: Mapping[str, Mapping[str, float]] = {
    "avg": {"high_hits": 0, "low_hits": 0},
    "overload": {"overloaded": 0.5},
    "transfer": {"hits": 0},
    "uniform": {"max_share": 0.5},
}
"""Settings with which each strategy moves something at its first look."""
MIB = 1024.0 * 1024.0


def load_report(cpu_fraction: float) -> dict[str, object]:
    """Return what the modular manager of 4.0.7 reports of a host with two cores."""
    unknown = {"usage": 0.0, "limit": -1.0}
    return {
        "webServiceUrl": "http://127.0.0.1:8081",
        "cpu": {"usage": 200.0 * cpu_fraction, "limit": 200.0},
        "memory": {"usage": 100.0, "limit": 1024.0},
        "directMemory": {"usage": 10.0, "limit": 512.0},
        "bandwidthIn": unknown,
        "bandwidthOut": {"usage": "NaN", "limit": 0.0},
        "lastUpdate": 1763900000000,
    }


@pytest.fixture
def busy(pulsar: FakePulsar) -> FakePulsar:
    for broker, fraction in zip(pulsar.brokers, (0.9, 0.1, 0.1), strict=True):
        broker.load_report = load_report(fraction)
    grows = pulsar.brokers[0].grows
    grows.update(dict.fromkeys(grows, (5e3, 1e4, 5 * MIB, 10 * MIB)))
    return pulsar


def config(folder: Path, strategy: str, **more: Mapping[str, object]) -> str:
    settings = EAGER.get(strategy, {})
    lines = [
        "[shedding]",
        f'strategy = "{strategy}"',
        "[shedding.settings]",
        *(f"{key} = {value}" for key, value in settings.items()),
    ]
    for section, keys in more.items():
        lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
    path = folder / "attach.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("strategy", SHEDDER_NAMES)
def test_every_strategy_of_sidecars_can_be_asked_what_it_would_do(
    busy: FakePulsar, tmp_path: Path, strategy: str
) -> None:
    told = seen(busy, "--config", config(tmp_path, strategy))
    assert told["strategy"] == strategy
    assert told["proposals"], told
    first = busy.brokers[0].name
    assert {one["source"] for one in told["proposals"]} == {first}
    assert all(
        one["reason"].startswith(f"{strategy} takes it off {first}") for one in told["proposals"]
    )
    assert told["plannedMaxOverMean"] == told["proposals"][-1]["maxOverMean"] < told["maxOverMean"]
    assert all(set(one) == {"about", "reason", "detail"} for one in told["refusals"])


@pytest.mark.parametrize("body", [{}, load_report(1.5e-9), load_report(0.01)])
def test_rates_decide_if_cpu_is_unknown_or_low(busy: FakePulsar, body: dict[str, object]) -> None:
    for broker in busy.brokers:
        broker.load_report = body
    told = seen(busy)
    assert (told["strategy"], told["missing"]) == ("joint", {})
    assert {one["cause"] for one in told["proposals"]} == {"imbalance"}
    assert told["plannedMaxOverMean"] == pytest.approx(told["leastMaxOverMean"])


def test_a_broker_sheds_down_to_the_tolerance(busy: FakePulsar) -> None:
    even, tolerant = seen(busy), seen(busy, "--tolerance", "2")
    assert even["plannedMaxOverMean"] < tolerant["plannedMaxOverMean"]
    assert 0 < len(tolerant["proposals"]) < len(even["proposals"])


def test_what_a_strategy_waits_for_is_said(busy: FakePulsar) -> None:
    told = seen(busy, "--strategy", "avg")
    assert told["proposals"] == []
    (waits,) = (one for one in told["refusals"] if one["reason"] == "hits_pending")
    assert (waits["about"], waits["detail"]) == (busy.brokers[0].name, "1 low hits, 1 high hits")
    found = attach(busy, "--once", "--strategy", "transfer")
    assert "nothing would be moved: transfer: The imbalance has not lasted" in found.stdout


def test_the_option_goes_before_the_configuration(busy: FakePulsar, tmp_path: Path) -> None:
    path = config(tmp_path, "avg", placement={"strategy": "round_robin"})
    told = seen(busy, "--config", path, "--strategy", "threshold", "--most-moves", "1")
    assert told["strategy"] == "threshold"
    assert len(told["proposals"]) == 1


def test_the_extensible_manager_tells_percentages_in_its_metrics(busy: FakePulsar) -> None:
    busy.settings["loadManagerClassName"] = EXTENSIBLE
    for broker, percent in zip(busy.brokers, (95, 5, 5), strict=True):
        broker.load_report = {}
        broker.more_metrics = f'pulsar_lb_cpu_usage{{cluster="research",broker="x"}} {percent}'
    told = seen(busy, "--strategy", "threshold")
    assert told["proposals"]
    assert {one["detail"] for one in told["refusals"] if one["about"] == busy.brokers[1].name} == {
        "0.050, mean 0.350"
    }
    asked = [path for one in busy.brokers for path in one.asked if "load-report" in path]
    assert len(asked) == len(busy.brokers)


def test_cpu_time_stands_in_where_the_number_of_cores_is_given(busy: FakePulsar) -> None:
    for number, broker in enumerate(busy.brokers):
        broker.load_report = {}
        counted = count(step=0 if number else 3.0)

        async def counting(
            _request: web.Request, broker: FakeBroker = broker, counted: "count[float]" = counted
        ) -> web.Response:
            broker.more_metrics = f"process_cpu_seconds_total{{}} {next(counted)}"
            return metrics(broker)

        broker.instead["/metrics/"] = counting
    told = seen(busy, "--strategy", "threshold", "--cores", "8")
    cores = {one["broker"]: one["cpuCores"] for one in told["brokers"]}
    assert sorted(cores.values())[:2] == [0.0, 0.0]
    mean = cores[busy.brokers[0].name] / 8 / 3
    assert {one["detail"] for one in told["refusals"]} >= {f"0.000, mean {mean:.3f}"}
    assert {one["source"] for one in told["proposals"]} == {busy.brokers[0].name}


def test_a_strategy_that_is_told_too_little_says_so(busy: FakePulsar, tmp_path: Path) -> None:
    for broker in busy.brokers:
        broker.load_report = {}
        broker.more_metrics = 'process_cpu_seconds_total{cluster="research"} 100.0'
    for more in ([], ["--balance", "--state-dir", str(tmp_path)]):
        found = attach(busy, "--once", "--strategy", "threshold", *more)
        assert found.exit_code == 1
        (line,) = found.stderr.splitlines()
        assert line.startswith(
            "loadmanager attach: strategy threshold decides by brokers' usage and limit of CPU"
        )
        assert any(f"(such as {one.name}: " in line for one in busy.brokers)
        assert "load-report: answered 404" in line
        assert "process_cpu_seconds_total has no limit without --cores" in line
    assert busy.dynamic == {}
    assert seen(busy, "--strategy", "uniform")["strategy"] == "uniform"


def test_a_broker_that_does_not_tell_neither_gives_nor_takes(busy: FakePulsar) -> None:
    silent = busy.brokers[1]
    silent.refuses("/admin/v2/broker-stats/load-report", 403, "not a superuser")
    told = seen(busy, "--strategy", "threshold")
    assert told["proposals"]
    assert {one["target"] for one in told["proposals"]} == {busy.brokers[2].name}
    assert "what it uses of its CPU is not known" in told["missing"][silent.name]
    assert "403" in told["missing"][silent.name]


def test_a_broker_that_has_not_measured_its_cpu_yet_is_waited_for(busy: FakePulsar) -> None:
    # A broker of 4.0.7 reports this until its first minute is over.
    unmeasured = load_report(1.5e-9)
    for broker in busy.brokers:
        broker.load_report = unmeasured
    told = seen(busy, "--strategy", "threshold")
    assert told["proposals"] == []
    why = "what it uses of its CPU is not known: its load manager has not measured its CPU yet"
    assert told["missing"] == {one.name: why for one in busy.brokers}
    assert told["verdict"] == "nothing to judge yet: no broker has figures"
    for broker, fraction in zip(busy.brokers[:2], (0.9, 0.1), strict=True):
        broker.load_report = load_report(fraction)
    told = seen(busy, "--strategy", "threshold")
    assert {one["target"] for one in told["proposals"]} == {busy.brokers[1].name}


def test_a_broker_that_has_just_started_is_waited_for(busy: FakePulsar) -> None:
    started = "process_start_time_seconds{{}} {}"
    for broker in busy.brokers:
        broker.more_metrics = started.format(time.time_ns() / 1e9 - 130)
    told = seen(busy, "--strategy", "threshold")
    assert told["proposals"] == []
    assert {"less than 150 s ago" in why for why in told["missing"].values()} == {True}
    for broker in busy.brokers:
        broker.more_metrics = started.format(time.time_ns() / 1e9 - 160)
    assert seen(busy, "--strategy", "threshold")["proposals"]


def test_moves_of_the_joint_strategy_say_what_they_were_weighed_by(busy: FakePulsar) -> None:
    told = seen(busy, "--strategy", "joint")["proposals"]
    assert told
    for one in told:
        assert re.search(
            r"goes from \d\.\d+ to \d\.\d+ of \w+ \(noise .*\); saves -?\d.* and costs \d.*; "
            r"cost known from \w+ \(\d+% learned\)",
            one["weighed"],
        )
        assert one["reason"].endswith(f"; {one['weighed']}")
    others = seen(busy, "--strategy", "threshold")["proposals"]
    assert {one["weighed"] for one in others} == {""}


@pytest.mark.parametrize(
    "body", [b"[]", b"{}", b"\xff", b'{"cpu": 3}', b'{"cpu": {"usage": -1, "limit": true}}']
)
def test_a_load_report_that_is_none_is_passed_over(busy: FakePulsar, body: bytes) -> None:
    async def strange(_request: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    for broker in busy.brokers:
        broker.instead["/admin/v2/broker-stats/load-report"] = strange
        broker.more_metrics = 'pulsar_lb_cpu_usage{cluster="research",broker="x"} 50'
    told = seen(busy, "--strategy", "threshold")
    assert {one["detail"] for one in told["refusals"]} == {"0.500, mean 0.500"}


def test_moves_of_a_strategy_are_decided_and_done_once(busy: FakePulsar, tmp_path: Path) -> None:
    options = ["--pulsar", busy.url, "--json", "--interval", "0.2", "--strategy", "threshold"]
    with attached(*options, "--balance", "--state-dir", str(tmp_path)) as process:
        process.until("began before the last move ended")
        process.terminate()
        assert process.wait() == 0
    told = [json.loads(line) for line in process.lines]
    tasks = [line["task"] for line in told if "task" in line]
    served = [one for one in tasks if one["state"] == "serving"]
    assert served
    assert all(one["why"].startswith("threshold takes it off") for one in served)
    # Hosts are measured once a minute: the windows after the moves show nothing new.
    assert len([one for one in tasks if one["state"] == "ordered"]) == len(served)
    assert len([line for line in told if line.get("proposals")]) == 1
    assert busy.dynamic == {}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--strategy", "fair"], f"fair; expected one of {', '.join(sorted(SHEDDER_NAMES))}"),
        (
            ["--strategy", "avg", "--placement", "best"],
            "--placement best; expected one of avg, joint, least_average_usage",
        ),
        (
            ["--strategy", "joint", "--placement", "avg"],
            "strategy joint with placement avg; expected as placement none, or joint",
        ),
        (
            ["--strategy", "avg", "--placement", "joint"],
            "strategy avg with placement joint; expected as placement another",
        ),
        (["--placement", "avg"], "strategy joint with placement avg; expected as placement none"),
        (["--strategy", "greedy_rate"], "greedy_rate was removed: joint evens out rates"),
        (["--doctor", "--strategy", "avg"], "--strategy is not given with --doctor"),
        (["--strategy", "avg", "--tolerance", "1.1"], "--tolerance is for strategy joint, not avg"),
    ],
)
def test_conflicting_options_are_one_sentence(busy: FakePulsar, more: list[str], says: str) -> None:
    for balance in ([], ["--balance"]) if "--doctor" not in more else ([],):
        found = attach(busy, *more, *balance)
        assert found.exit_code == 2
        assert says in found.stderr
    assert busy.dynamic == {}


def test_faults_of_the_configuration_are_told_first(busy: FakePulsar, tmp_path: Path) -> None:
    path = config(tmp_path, "threshold", planner={"max_moves_per_round": -1})
    found = attach(busy, "--balance", "--config", path)
    assert found.exit_code == 1
    assert "max_moves_per_round = -1" in found.stderr
    assert busy.dynamic == {}
