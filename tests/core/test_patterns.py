"""Patterns of operators are Java's, and no expression takes more than linear time for its text."""

import importlib
import pkgutil
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import loadmanager
import loadmanager.core.policies as policies_module
from loadmanager.core.errors import MalformedContent
from loadmanager.core.fields import to_json
from loadmanager.core.ids import BrokerId, Namespace
from loadmanager.core.policies import (
    LONGEST_PATTERN,
    MOST_PATTERNS,
    IsolationPolicy,
    Policies,
    _compiled,
    checked,
    first_of,
    hosts_matching,
    loosened,
    matches_any,
    open_to,
    why_refused,
)
from loadmanager.core.wire.policies import decode_isolation

MEANT = [
    # Pattern of Java, names that it matches as a whole, names that it does not.
    ("t/.*", ["t/a", "t/"], ["xt/a", "t"]),
    ("a|ab", ["a", "ab"], ["b"]),
    (r"\Qa.b\E+", ["a.b", "a.bb"], ["axb", "a.ba.b"]),
    (r"\Qa[b&&c]", ["a[b&&c]"], ["ab"]),
    (r"[\Q^]\E]+", ["^]"], ["a"]),
    (r"\x41\x{42}", ["AB"], ["ab"]),
    (r"\p{Lower}+[\P{Digit}_]", ["ab_", "abc"], ["ab1", "A_"]),
    (r"\p{Lu}\pL", ["Ab"], ["ab", "A1"]),
    (r"^\w+\Z", ["a_1"], ["a-1"]),
    ("(?<name>a)(?:b)?(?i:C)", ["ac", "abC"], ["aC1", "Ac"]),
    (r"[]a]+[^]a]", ["]b", "a-"], ["]a"]),
    ("a{2,3}?b*?", ["aa", "aaab"], ["a", "aaaa"]),
    (r"a\-b\.c\/d", ["a-b.c/d"], ["a-bxc/d"]),
    ("", [""], ["a"]),
]
REFUSED = [
    *("a*+", "a{2}+", "(?>a)", "(?=a)", "(?!a)", "(?<=a)", "(?<!a)", r"(a)\1", r"(?<n>a)\k<n>"),
    *("[a-d[m-p]]", "[a-z&&[def]]", "[[:alpha:]]", "(?x)a", r"\v", r"\h", r"\R", r"\01", r"\u0041"),
    *("(", ")", "a)(b", "[", "*a", "a**", "\\", r"\p{IsLatin}", r"\y", "\ud800", "[z-a]"),
    r"\u0041",
    *("(?:a{1000}){1000}", "a{2000}", "a" * (LONGEST_PATTERN + 1)),
]


@pytest.mark.parametrize(("pattern", "meant", "others"), MEANT, ids=[one[0] for one in MEANT])
def test_patterns_mean_what_javas_do(pattern: str, meant: list[str], others: list[str]) -> None:
    assert [one for one in meant if not matches_any((pattern,), one)] == []
    assert [one for one in others if matches_any((pattern,), one)] == []


@pytest.mark.parametrize("pattern", REFUSED, ids=lambda one: ascii(one)[:20])
def test_what_is_not_supported_is_refused_with_what_it_is(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"RE2 does not support '.*' \(.+\)"):
        checked(pattern)
    assert why_refused(("a", pattern)).isascii()
    assert not matches_any(("a", pattern), "a")


def test_a_refused_pattern_may_match_what_begins_as_it_does() -> None:
    for pattern, text, may in (
        ("t/(?!a).*", "t/b", True),
        ("t/(?!a).*", "x/b", False),
        ("te?(?!a).*", "t/b", True),
        ("a|(?!b)", "x", True),
        ("(?!b).*", "x", True),
        ("t/b", "t/b", True),
        ("t/b", "t/c", False),
        # What is too long to be matched is cut, whatever it is.
        ("a" * 2_000, "a" * 2_000, True),
        ("a" * 2_000, "a" * 199, False),
        ("-" * 2_000, "-" * 300, True),
    ):
        assert matches_any((loosened(pattern),), text) is may, pattern


def test_the_first_of_many_patterns_is_found_also_where_they_are_too_large_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = {"b1": "b1|x", "b7": "b7|x", "x": "b0|x", "c": "c|b.*", "d": None, "": None}
    patterns = (*(f"b{number}|x" for number in range(8)), "c|b.*", "c")
    assert {text: first_of(patterns)(text) for text in asked} == asked
    large = (*(f"{one}{{1000}}" for one in "efghijklmnopqrstuvwyz"), *patterns)
    options = policies_module._options
    monkeypatch.setattr(policies_module, "_options", lambda size: options(min(size, 300_000)))
    monkeypatch.setattr(policies_module, "_MOST_KNOWN", 2)
    assert {text: first_of(large)(text) for text in asked} == asked


def test_a_pattern_that_is_far_too_long_stops_no_other_and_is_not_kept() -> None:
    good = IsolationPolicy(namespaces=("t/good",), primary=("a",))
    sizes = []
    for begin in "abcdefgh":
        long = IsolationPolicy(namespaces=(begin + "-" * 8_000_000, "t/x(?!y)"), primary=("b",))
        odd = IsolationPolicy(namespaces=("o" * 2_000,), primary=("b",))
        policies = Policies(isolation={"good": good, "long": long, "odd": odd})
        assert policies.governing(Namespace("t/good")) == good
        assert policies.refusal(Namespace("t/good")) == ""
        assert policies.refusal(Namespace("t/xy")) == policies.refused["long"]
        assert policies.refusal(Namespace("o" * 2_000)) == policies.refused["odd"]
        assert policies.refused["odd"].endswith("(over 1,000 characters)")
        del long, policies
        sizes.append(psutil.Process().memory_info().rss)
    assert sizes[-1] < sizes[1] + 16 * 2**20, sizes


def test_changes_of_policies_leave_memory_flat() -> None:
    names = [Namespace(f"t/n{number}") for number in range(30_000)]
    brokers = tuple(BrokerId(f"h{number}:1") for number in range(200))
    sizes = []
    for change in range(16):
        one = IsolationPolicy(namespaces=(f"x{change}.*", "y"), primary=(f"h{change}.*",))
        policies = Policies(isolation={"one": one})
        assert {policies.governing(one) for one in names} == {None}
        open_to(policies, None, brokers)
        sizes.append(psutil.Process().memory_info().rss)
    assert sizes[-1] < sizes[8] + 16 * 2**20, sizes


def test_policies_beyond_the_total_are_refused_by_name_and_no_others() -> None:
    def named(count: int, length: int = 5) -> IsolationPolicy:
        few = tuple(f"t/{number:0{length}}" for number in range(count - 1))
        return IsolationPolicy(namespaces=few, primary=("a",))

    most = MOST_PATTERNS - 2
    for much in (named(MOST_PATTERNS + 1), named(most - 1, 990), named(3)):
        isolation = {"a": named(most), "b": much, "c": named(2)}
        policies = Policies(isolation=isolation)
        assert policies.refused == {
            "b": "isolation policy b is refused: with it policies have over 1,000 patterns, or "
            "100,000 characters"
        }
        assert policies.governing(Namespace("t/00001")) == isolation["a"]
        assert policies.refusal(Namespace(much.namespaces[0])) == policies.refused["b"]
    many = Policies(isolation={f"p{number:02}": named(MOST_PATTERNS + 1) for number in range(12)})
    assert many.refusals.count("with it") == 10
    assert many.refusals.endswith("; 2 more are refused")


def test_what_a_policy_of_very_many_patterns_may_be_for_is_known_soon() -> None:
    names = tuple(f"t/many{number:x}" for number in range(300_000))
    isolation = {
        "few": IsolationPolicy(namespaces=("t/few(?!s)",), primary=("a",)),
        "good": IsolationPolicy(namespaces=("t/good",), primary=("a",)),
        "many": IsolationPolicy(namespaces=names, primary=("b",)),
        "x": IsolationPolicy(namespaces=tuple(f"x{one}|y" for one in names), primary=("b",)),
    }
    began_s = time.process_time()
    asked = {"t/good": "", "t/many7": "many", "t/few": "few", "t/many": "many", "z": ""}
    policies = Policies(isolation={one: isolation[one] for one in ("few", "good", "many")})
    every = Policies(isolation=isolation)
    for name, by in asked.items():
        assert policies.refusal(Namespace(name)) == (policies.refused[by] if by else "")
    assert every.refusal(Namespace("z")) == every.refused["x"]  # It may be for all.
    assert time.process_time() - began_s < 5.0
    with pytest.raises(MalformedContent, match="expected at most 10,000"):
        decode_isolation("p", to_json({f"{number}": 0 for number in range(10_001)}))


def test_a_thousand_policies_of_patterns_that_go_on_take_a_bounded_time() -> None:
    """For each of ten thousand namespaces, once per change of the policies."""
    isolation = {
        f"p{number:04}": IsolationPolicy(namespaces=(f"t/(x|y)*{number}.*",), primary=())
        for number in range(MOST_PATTERNS)
    }
    policies = Policies(isolation=isolation)
    names = [Namespace(f"t/xyxyxyxy{number}") for number in range(10_000)]
    assert spent_s(lambda _: [policies.governing(name) for name in names], "") < 10.0


def test_a_refused_policy_binds_nobody_and_keeps_the_bundles_that_it_may_be_for() -> None:
    brokers = tuple(BrokerId(f"{name}:8080") for name in "abc")
    good = IsolationPolicy(namespaces=("t/good",), primary=("a",))
    odd = IsolationPolicy(namespaces=("t/odd(?!s).*",), primary=("b",))
    policies = Policies(isolation={"odd": odd, "good": good})
    assert policies.governing(Namespace("t/good")) == good
    assert policies.governing(Namespace("t/odd")) is None
    assert policies.refused.keys() == {"odd"}
    assert policies.refusal(Namespace("t/odd")).startswith("isolation policy odd is refused: RE2")
    assert policies.refusal(Namespace("t/good")) == policies.refusal(Namespace("x/odd")) == ""
    assert list(open_to(policies, None, brokers)) == [False, True, True]
    assert list(hosts_matching(("(",), brokers)) == [False] * 3


HOSTILE = ["([a-z/-]+)+!", "(.*/?)*-prod$", "(a|a)*b", "(a*)*b", "(a|aa)+$", "(x+x+)+y", ".*.*=.*"]
"""Each takes exponential or cubic time where an engine goes back."""


def ours() -> Iterator[tuple[str, Callable[[str], object]]]:
    """Yield what is asked of the expressions of all modules that can be imported here."""
    (folder,) = map(Path, loadmanager.__path__)
    code = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))
    for module in pkgutil.walk_packages(loadmanager.__path__, "loadmanager."):
        if module.name.endswith("__main__"):
            continue
        try:
            names = vars(importlib.import_module(module.name))
        except ImportError:
            continue
        for name, value in names.items():
            if isinstance(value, re.Pattern):
                asked = set(
                    re.findall(rf"\b{name}\.(match|fullmatch|search|find\w+|sub|split)", code)
                )
                assert asked, name
                for ask in asked:
                    yield f"{module.name}.{name}.{ask}", asking(value, ask)


def asking(pattern: re.Pattern[Any], ask: str) -> Callable[[str], object]:
    def answer(text: str) -> object:
        given = text if isinstance(pattern.pattern, str) else text.encode()
        if ask in {"match", "fullmatch", "search"}:
            return getattr(pattern, ask)(given)
        return pattern.findall(given)

    return answer


UNITS = [
    *("a", "0", " ", "\n", ".", "/", "-", ":", "=", '"', "\\", "{", "}", "`", "_", ",", "\t"),
    *('a="', 'a="x,', 'a=\\"', "a:1,", "0x0_", "a/b/", "1.0 ", "a: b\r\n", "\r\n", "\\\\"),
    *("date=", "(a", "A.", "a.B", "} ", "persistent://", "Caused by: ", " at 1111-1: "),
    *("pulsar_in_bytes_total{", "pulsar_in_bytes_total{} "),
]


BESIDE = [
    *(("", ""), ('a="', ""), ("", "!"), ("pulsar_in_bytes_total{", "\n")),
    ("paused by a", "\n: "),
]


def spent_s(search: Callable[[str], object], text: str) -> float:
    def once_s() -> float:
        began_s = time.process_time()
        search(text)
        return time.process_time() - began_s

    return min(once_s() for _ in range(2))


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_patterns_take_linear_time(hostile: str) -> None:
    assert checked(hostile) == hostile
    assert_linear(hostile, _compiled(hostile).fullmatch)


def test_our_own_expressions_take_linear_time() -> None:
    found = dict(ours())
    assert len(found) > 30
    for name, search in found.items():
        assert_linear(name, search)


def assert_linear(name: str, search: Callable[[str], object]) -> None:
    """Four times the text takes at most eight times as long, but for what is too short to tell."""
    for unit in UNITS:
        for begin, end in BESIDE:
            text, longer = (f"{begin}{unit * (n // len(unit))}{end}" for n in (4_000, 16_000))
            took_s = spent_s(search, longer)
            assert took_s < 0.02 or took_s <= 0.05 + 8 * spent_s(search, text), (name, unit)
