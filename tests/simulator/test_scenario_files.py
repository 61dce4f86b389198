import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from scenario_reference import EXAMPLE, Key, keys_of, scenario_reference
from scenario_texts import SOUND, changed, loaded, told
from simulated_jobs import score_job

from loadmanager.cli import main
from loadmanager.config.forms import Section
from loadmanager.simulator.results import SCORE_DOCS
from loadmanager.simulator.scenario import Scenario, ScenarioError
from loadmanager.simulator.scenario_files import find, load_scenario, shipped
from loadmanager.simulator.simulation_jobs import Job
from loadmanager.simulator.strategies import Strategy, parse_strategies


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
    assert sorted(told(tmp_path, text)) == sorted(
        [
            'title = ""; expected it to have at least 1 character',
            'duration_s = "long"; expected it to be a valid number',
            "colour = 1; no such key; expected one of docs/scenario-format.md",
            "brokers[0].count = 0; expected it to be greater than or equal to 1",
            "brokers[1].count is not set; expected a value",
            r"""brokers[1].name = "big one"; expected it to match pattern '^[A-Za-z][-\w.]*$'""",
            (
                "load[0].namespace = \"public\"; namespace 'public' is not valid; expected "
                "tenant/namespace of letters, digits and -=:._, neither of them . or .."
            ),
            "load[0].msgs_in_per_s = nan; expected it to be a finite number",
            "load[0].skew.kind = \"zip\"; expected one of 'even', 'zipf', 'log_normal', 'hot'",
            "load[0].patterns[0].at_s = -1; expected it to be greater than or equal to 0",
            "load[0].patterns[1].kind is not set; expected one of the kinds of this table",
            (
                "events[0].kind = \"explode\"; expected one of 'join', 'leave', 'crash', "
                "'drain', 'restart', 'noise', 'silence', 'shift'"
            ),
            "events[1].brokers = []; expected it to have at least 1 item after validation, not 0",
            "noise.delay_s = inf; expected it to be a finite number",
            (
                "noise.usage_fractoin = 0.1; no such key; expected one of "
                "docs/scenario-format.md; did you mean usage_fraction?"
            ),
            "planner.mode = \"brave\"; expected it to be 'safe' or 'parity'",
            "shedding.grace_period_s = -1; expected it to be greater than or equal to 0",
            "shedding.settings.a = {b = 1}; expected it to be a valid boolean",
        ]
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "title is not set; expected a value"),
        ("a = 1\na = 2\n", "Cannot overwrite a value (at line 2, column 6); expected TOML"),
        ("[a]\nb = [\n", "Invalid value (at end of document); expected TOML"),
        (b"a = 1\nb = '\xff'", "the byte 0xff is not UTF-8; expected TOML in UTF-8"),
        ("a = " + "[" * 5000, "lists in lists without end; expected TOML"),
        ("[load]\ntopics = 1", "load = {topics = 1}; expected it to be a list"),
        ("events = [5]", "events[0] = 5; expected it to be a table"),
        ("noise = 5", "noise = 5; expected it to be a table"),
        ("trace = 1979-05-27", "trace = 1979-05-27; expected the path of a file"),
        ("model = 1", "model = 1; no such key; expected it to be left out: there is one model"),
        ('"a b".c = 1', '"a b" = {c = 1}; no such key; expected one of docs/scenario-format.md'),
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


def keys_in(model: type[Section]) -> list[Key]:
    found = list(keys_of(model).values())
    return found + [inner for key in found for inner in keys_below(key)]


def keys_below(key: Key) -> list[Key]:
    return [inner for model in key.models.values() for inner in keys_in(model)]


def run(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["config", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_every_key_says_what_it_does() -> None:
    # Which kind it is says itself.
    assert {key.name for key in keys_in(Scenario) if not key.field.description} == {"kind"}


def test_every_key_but_those_of_a_configuration_is_in_the_reference() -> None:
    text = scenario_reference()
    own = [key for key in keys_in(Scenario) if key.name not in {"kind", "settings"}]
    in_configuration = {
        key.name
        for name in ("report", "leader", "shedding", "placement", "planner")
        for key in keys_below(keys_of(Scenario)[name])
    }
    described = {key.name: " ".join((key.field.description or "").split()) for key in own}
    missing = [name for name, what in described.items() if f"| `{name}` | {what}" not in text]
    assert set(missing) <= in_configuration


def test_the_example_of_the_reference_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "example.toml"
    path.write_text(EXAMPLE)
    assert load_scenario(path).title == "A broker joins"


def test_a_shipped_scenario_is_found_by_name_and_ones_own_by_its_path(tmp_path: Path) -> None:
    assert find("trace-example") == shipped()["trace-example"]
    assert find("mine.toml") == Path("mine.toml")
    assert find("./mine") == Path("./mine")
    own = tmp_path / "mine"
    own.write_text(EXAMPLE)
    assert find(str(own)) == own


def test_a_name_that_no_scenario_has_is_told_with_those_there_are() -> None:
    with pytest.raises(ScenarioError) as caught:
        find("trace-exampel")
    (fault,) = caught.value.faults
    assert fault.startswith(
        "scenario 'trace-exampel'; expected a .toml file or one of all-on-one, "
    )
    assert fault.endswith("; did you mean trace-example?")


def test_the_check_tells_every_mistake_of_every_file_and_ends_with_1(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text(EXAMPLE)
    bad.write_text("seed = -1\n" + EXAMPLE)
    code, out, err = run("check-scenario", bad, "nothing", good)
    assert (code, out.count("sound")) == (1, 1)
    assert err.startswith(f"{bad}: seed = -1; expected it to be greater than or equal to 0\n")
    assert "scenario 'nothing'; expected" in err


def test_the_check_reads_the_trace(tmp_path: Path) -> None:
    path, trace = tmp_path / "x.toml", tmp_path / "rates.csv"
    path.write_text(EXAMPLE)
    sound = f"{path}: sound: 4 brokers, 64 bundles, 3600 s\n"
    assert run("check-scenario", path) == (0, sound, "")
    trace.write_text("time_s,topic,msg_rate_in\n0,a,1\n1800,a,1\n")
    sound = f"{path}: sound: 4 brokers, 1 topics at 2 times, 3600 s\n"
    assert run("check-scenario", path, "--trace", trace) == (0, sound, "")
    trace.write_text("time_s,topic\n")
    assert run("check-scenario", path, "--trace", trace)[0] == 1


TEXT = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()


def test_the_scenario_of_the_document_runs_and_comes_out_as_it_expects(tmp_path: Path) -> None:
    path = tmp_path / "evening.toml"
    path.write_text(re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)[0])
    scenario = load_scenario(path)
    (expected,) = scenario.expect
    pair = Strategy.parse(expected.strategies[0])
    scores = score_job(Job(name="evening", scenario=scenario, strategy=pair, seed=scenario.seed))
    assert expected.most is not None
    assert getattr(scores, expected.score) <= expected.most
    assert scores.moves > 0


def test_the_options_and_strategies_of_the_document_exist() -> None:
    shown = CliRunner().invoke(main, ["simulate", "--help"]).output
    commands = [line for line in TEXT.splitlines() if line.startswith("loadmanager simulate")]
    assert len(commands) > 3
    for option in {one for line in commands for one in re.findall(r"--[a-z-]+", line)}:
        assert option in shown
    for pairs in {one for line in commands for one in re.findall(r"--strategy (\S+)", line)}:
        assert parse_strategies(pairs)


def test_the_scores_of_the_document_exist() -> None:
    table = TEXT.partition("## Scores")[2].partition("## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    told = {name for row in rows for name in re.findall(r"`([a-z][a-z_]+)`", row)}
    assert told <= set(SCORE_DOCS)
    assert len(told) > 10


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
