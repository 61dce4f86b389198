from pathlib import Path

import pytest
from scenario_texts import SOUND, loaded, told

from loadmanager.simulator.scenario_files import ScenarioError, load_scenario


def test_a_sound_file_is_a_scenario_with_defaults_for_the_rest(tmp_path: Path) -> None:
    scenario = loaded(tmp_path, SOUND)
    assert scenario.broker_names == ("small-1", "small-2")
    assert (scenario.duration_s, scenario.step_s, scenario.load[0].bundles) == (600, 10, 16)


def test_all_single_faults_are_told(tmp_path: Path) -> None:
    text = """\
title = ""
duration_s = "long"
colour = 1
[[brokers]]
name = "small"
count = 0
[[brokers]]
name = "big one"
[[load]]
namespace = "public"
topics = 3
msgs_in_per_s = nan
skew = { kind = "zip", exponent = 2 }
patterns = [
  { kind = "flash", at_s = -1 },
  { factor = 2 },
]
[[events]]
kind = "explode"
at_s = 5
[[events]]
kind = "leave"
at_s = 5
brokers = []
[noise]
delay_s = inf
usage_fractoin = 0.1
[planner]
mode = "brave"
[shedding]
grace_period_s = -1
settings = { a = { b = 1 } }
"""
    known = "title, description, duration_s, step_s, warm_up_s, seed, brokers, load, trace"
    faults = sorted(told(tmp_path, text))
    unknown = f"colour = 1; no such key; expected one of {known}"
    assert [one for one in faults if not one.startswith(unknown)] == sorted(
        [
            'title = ""; expected a text of 1 to 120 characters',
            'duration_s = "long"; expected a number above 0 up to 32000000',
            "brokers[0].count = 0; expected a whole number from 1 to 100000",
            "brokers[1].count is not set; expected a whole number from 1 to 100000",
            'brokers[1].name = "big one"; expected a name of letters, digits and any of . - _',
            (
                'load[0].namespace = "public"; expected a namespace "tenant/name" of letters, '
                "digits and -=:._"
            ),
            "load[0].msgs_in_per_s = nan; expected a number from 0 to 1000000000000",
            'load[0].skew.kind = "zip"; expected one of "even", "zipf", "log_normal", "hot"',
            "load[0].patterns[0].at_s = -1; expected a number from 0 to 100000000",
            (
                "load[0].patterns[1].kind is not set; expected one of "
                '"day", "week", "jitter", "burst", "flash", "trend", "growth", "steps"'
            ),
            (
                'events[0].kind = "explode"; expected one of "join", "leave", "crash", '
                '"drain", "restart", "noise", "silence", "shift"'
            ),
            ("events[1].brokers = []; expected a list that is not empty, of which each is a text"),
            "noise.delay_s = inf; expected a number from 0 to 3600",
            "noise.usage_fractoin = 0.1; no such key; did you mean usage_fraction?",
            'planner.mode = "brave"; expected one of "safe", "parity"',
            "shedding.grace_period_s = -1; expected a number from 0 to 604800",
            (
                "shedding.settings.a = {b = 1}; expected true or false, a number, a text, "
                "or a list of texts"
            ),
        ]
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "title is not set; expected a text of 1 to 120 characters"),
        ("a = 1\na = 2\n", "Cannot overwrite a value (at line 2, column 6); expected TOML"),
        ("[a]\nb = [\n", "Invalid value (at end of document); expected TOML"),
        (b"a = 1\nb = '\xff'", "the byte 0xff is not UTF-8; expected TOML in UTF-8"),
        ("a = " + "[" * 5000, "lists in lists without end; expected TOML"),
        ("[load]\ntopics = 1", ("load = {topics = 1}; expected [[load]] tables")),
        ("events = [5]", "events[0] = 5; expected a table"),
        ("noise = 5", "noise = 5; expected a table, [noise]"),
        ("trace = 1979-05-27", "trace = 1979-05-27; expected a text"),
        ("model = 1", "model = 1; no such key; expected it to be left out: there is one model"),
        ('"a b".c = 1', '"a b" = {c = 1}; no such key; expected one of title, '),
    ],
)
def test_what_is_no_scenario_at_all_is_told(tmp_path: Path, text: str, fault: str) -> None:
    assert [one for one in told(tmp_path, text) if one.startswith(fault)]


def test_a_file_or_a_trace_that_is_not_there_is_told_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"no\.toml: No such file or directory; expected"):
        load_scenario(tmp_path / "no.toml")
    path, trace = tmp_path / "x.toml", tmp_path / "rates.csv"
    path.write_text(SOUND)
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path, trace=trace)
    assert caught.value.faults == (f"{trace}: no such file; expected recorded topic rates",)
    trace.write_text("")
    scenario = load_scenario(path, trace=trace)
    assert (scenario.trace, scenario.load) == (trace, ())  # It is the whole load.


def test_pulsars_names_of_strategies_and_settings_are_taken(tmp_path: Path) -> None:
    text = SOUND + (
        "[shedding]\nstrategy = 'org.apache.pulsar.broker.loadbalance.impl.ThresholdShedder'\n"
        "settings = { loadBalancerBrokerThresholdShedderPercentage = 20 }"
    )
    assert loaded(tmp_path, text).shedding.settings


def test_a_trace_is_looked_for_beside_the_scenario(tmp_path: Path) -> None:
    text = "trace = 'rates.csv'\n" + SOUND[: SOUND.index("[[load]]")]
    assert told(tmp_path, text) == ['trace = "rates.csv"; expected a file; there is no rates.csv']
    (tmp_path / "rates.csv").write_text("")
    assert loaded(tmp_path, text).trace == tmp_path / "rates.csv"
