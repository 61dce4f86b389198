from pathlib import Path

import pytest
from scenario_texts import SOUND, changed, loaded, told

AGAIN = """
[[load]]
namespace = "public/default"
topics = 1
msgs_in_per_s = 1
"""


TOGETHER = [
    (
        changed("count = 2", 'count = 2\n[[brokers]]\nname = "small"\ncount = 1'),
        'brokers[1].name = "small"; expected a name of its own: another class has small',
    ),
    (
        changed("count = 2", 'count = 2\n[[brokers]]\nname = "small-1"\ncount = 1'),
        'brokers[1].name = "small-1"; expected a name of its own: another class has small-1',
    ),
    (
        changed("count = 2", "count = 2\njoined = false"),
        (
            "brokers[0].joined = false; expected true for some class, or an event of kind "
            "join: there is never a broker"
        ),
    ),
    (
        "step_s = 60\n" + SOUND,
        "leader.tick_interval_s = 10.0 by default; expected a multiple of step_s (60)",
    ),
    (
        SOUND + "[leader]\nround_interval_s = 25",
        "leader.round_interval_s = 25; expected a multiple of step_s (10)",
    ),
    (
        SOUND + "[leader]\nreport_stale_s = 30",
        (
            "report.max_interval_s = 60.0 by default; expected so much below [leader] "
            "report_stale_s (30) that with jitter (72) an idle broker's report is renewed before "
            "it counts as stale"
        ),
    ),
    (
        SOUND + '[shedding]\nshadows = ["joint"]',
        (
            'shedding.shadows = ["joint"]; expected none: --strategy has each strategy '
            "simulated by itself"
        ),
    ),
    (
        SOUND[: SOUND.index("[[load]]")],
        "load is not set; expected [[load]] sections, or a trace: there is nothing to do",
    ),
    (
        "trace = 'a.csv'\n" + SOUND,
        ('trace = "a.csv"; expected none beside [[load]] sections: a trace is the whole load'),
    ),
    (
        SOUND + AGAIN + "bundles = 8",
        "load[1].bundles = 8; expected 16, as in the first load of public/default",
    ),
    (
        SOUND + AGAIN + "placed_on = ['small-2']",
        (
            'load[1].placed_on = ["small-2"]; expected it in the first load of '
            "public/default, or the same there"
        ),
    ),
    (
        SOUND + AGAIN + "placed = 'unowned'",
        (
            'load[1].placed = "unowned"; expected it in the first load of public/default, '
            "or the same there"
        ),
    ),
    (
        SOUND + "skew = { kind = 'hot', topics = 11 }",
        "load[0].skew.topics = 11; expected at most 10, the topics of the load",
    ),
    (
        SOUND + "bundles = 4\nover = 'bundles'\nskew = { kind = 'hot', topics = 5 }",
        "load[0].skew.topics = 5; expected at most 4, the bundles of the load",
    ),
    (
        SOUND + "placed_on = ['small-1', 'small']",
        'load[0].placed_on[1] = "small"; expected each broker once',
    ),
    (
        SOUND + "placed_on = ['new']\n[[brokers]]\nname = 'new'\ncount = 1\njoined = false",
        (
            'load[0].placed_on[0] = "new"; expected brokers that are there from the '
            "beginning: joined = true"
        ),
    ),
    (
        SOUND + "placed_on = ['small']\nplaced = 'unowned'",
        (
            'load[0].placed_on = ["small"]; expected none, as placed = "unowned" says that '
            "no broker has these bundles"
        ),
    ),
    (
        "trace_patterns = [{ kind = 'day', peak_h = 24 }]\n" + SOUND,
        "trace_patterns[0].peak_h = 24; expected less than 24, the hours of a day",
    ),
    (
        SOUND + "patterns = [{ kind = 'day', peak_h = 24 }]",
        "load[0].patterns[0].peak_h = 24; expected less than 24, the hours of a day",
    ),
    (
        SOUND + "patterns = [{ kind = 'day', spread_h = 13 }]",
        "load[0].patterns[0].spread_h = 13; expected at most 12, half of a day",
    ),
    (
        SOUND + "patterns = [{ kind = 'burst', length_s = 100, every_s = 10 }]",
        (
            "load[0].patterns[0].every_s = 10; expected at least length_s (100): a burst ends "
            "before the next"
        ),
    ),
    (
        SOUND + "patterns = [{ kind = 'flash', at_s = 600 }]",
        "load[0].patterns[0].at_s = 600; expected a time before the end, duration_s = 600",
    ),
    (
        SOUND + "patterns = [{ kind = 'trend', per_hour = 1, from_s = 600 }]",
        "load[0].patterns[0].from_s = 600; expected a time before the end, duration_s = 600",
    ),
    (
        SOUND + "patterns = [{ kind = 'steps', at_s = [\n60, 60,\n600], factors = [1, 2, 3] }]",
        "load[0].patterns[0].at_s[1] = 60; expected times that ascend: more than 60",
    ),
    (
        SOUND + "patterns = [{ kind = 'steps', at_s = [\n60,\n600], factors = [1, 2] }]",
        "load[0].patterns[0].at_s[1] = 600; expected a time before the end, duration_s = 600",
    ),
    (
        SOUND + "patterns = [{ kind = 'steps', at_s = [60, 90], factors = [1] }]",
        "load[0].patterns[0].factors = [1]; expected 2 factors, one for each time of at_s",
    ),
    (
        SOUND + "[[events]]\nkind = 'shift'\nat_s = 1\nfactor = 2\nnamespace = 'a/b'",
        'events[0].namespace = "a/b"; expected the namespace of a load: public/default',
    ),
    (
        SOUND + "[[events]]\nkind = 'join'\nat_s = 1\nbrokers = ['small-2']",
        (
            'events[0].brokers = ["small-2"]; expected brokers that are not there or '
            "draining, or gone already for a join; small-2 is there by then"
        ),
    ),
    (
        SOUND + "[[events]]\nkind = 'drain'\nat_s = 2\nbrokers = ['small']\n"
        "[[events]]\nkind = 'leave'\nat_s = 1\nbrokers = ['small-2']",
        (
            'events[0].brokers = ["small"]; expected brokers that are there for a drain; '
            "small-2 is not there by then"
        ),
    ),
    (
        SOUND + "[[expect]]\nscore = 'move'\nmost = 1",
        'expect[0].score = "move"; expected a score, one of max_over_mean, ',
    ),
    (
        SOUND + "[[expect]]\nscore = 'moves'",
        (
            'expect[0].score = "moves"; expected least or most beside it: without a bound '
            "it says nothing"
        ),
    ),
    (
        SOUND + "[[expect]]\nscore = 'moves'\nleast = 5\nmost = 4",
        "expect[0].most = 4; expected at least the value of least (5)",
    ),
    (
        SOUND + "[[expect]]\nscore = 'moves'\nmost = 4\nstrategies = ['*', 'thresold+*']",
        (
            'expect[0].strategies[1] = "thresold+*"; expected a pair, such as '
            "threshold+least_long_term_message_rate, or a pattern that means some"
        ),
    ),
    (
        SOUND + "[shedding]\nstrategy = 'Best'",
        'shedding.strategy = "Best"; expected one of AvgShedder, ',
    ),
    (
        SOUND + "[shedding]\nstrategy = 'ThresholdShedder'\n[shedding.settings]\nthreshhold = 0.1",
        "shedding.settings.threshhold = 0.1; did you mean threshold?",
    ),
    (
        SOUND + "[shedding]\nstrategy = 'threshold'\n[shedding.settings]\nthreshold = 0.1\n"
        "loadBalancerBrokerThresholdShedderPercentage = 20",
        (
            "shedding.settings.loadBalancerBrokerThresholdShedderPercentage = 20; "
            "expected it once: threshold is the same setting"
        ),
    ),
    (
        SOUND + "[shedding]\nstrategy = 'threshold'\nsettings = { threshold = 7 }",
        "shedding.settings.threshold = 7; expected ",
    ),
    (
        SOUND + "[placement]\nstrategy = 'LeastResourceUsageWithWeight'\n"
        "settings = { loadBalancerCPUResourceWeight = 'much' }",
        'placement.settings.loadBalancerCPUResourceWeight = "much"; expected a number',
    ),
]


@pytest.mark.parametrize(("text", "fault"), TOGETHER, ids=[fault for _, fault in TOGETHER])
def test_values_that_do_not_go_together_are_told(tmp_path: Path, text: str, fault: str) -> None:
    assert [one for one in told(tmp_path, text) if one.startswith(fault)]


def test_only_the_first_load_of_a_namespace_has_to_say_where_its_bundles_are(
    tmp_path: Path,
) -> None:
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
