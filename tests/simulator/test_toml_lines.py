import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.simulator.toml_lines import TomlPath, toml_lines

MIXED = """\
# a comment with [brackets] and "quotes"
title = "one \\" two" # three
[a]
x.y = 1
x.'z z' = [ # first
  1, "]",
  { p = 2, "q" = [
    3] },
]

[[load]]
text = \"\"\"
[not.a.header]
k = 1 \\\"""\"\"\"
[[load]]
namespace = '''a
''b'''''
[[load.patterns]]
kind = 'x'
[load.skew]
kind = "even"
[b.c]
d = 1979-05-27 07:32:00 # a date with a blank
[b]
e = {}
"""

LINES = {
    ("title",): 2,
    ("a",): 3,
    ("a", "x"): 4,
    ("a", "x", "y"): 4,
    ("a", "x", "z z"): 5,
    ("a", "x", "z z", 0): 6,
    ("a", "x", "z z", 1): 6,
    ("a", "x", "z z", 2): 7,
    ("a", "x", "z z", 2, "p"): 7,
    ("a", "x", "z z", 2, "q"): 7,
    ("a", "x", "z z", 2, "q", 0): 8,
    ("load",): 11,
    ("load", 0): 11,
    ("load", 0, "text"): 12,
    ("load", 1): 15,
    ("load", 1, "namespace"): 16,
    ("load", 1, "patterns"): 18,
    ("load", 1, "patterns", 0): 18,
    ("load", 1, "patterns", 0, "kind"): 19,
    ("load", 1, "skew"): 20,
    ("load", 1, "skew", "kind"): 21,
    ("b",): 24,
    ("b", "c"): 22,
    ("b", "c", "d"): 23,
    ("b", "e"): 25,
}


def paths_of(value: object, path: TomlPath = ()) -> Iterator[TomlPath]:
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from paths_of(inner, (*path, key))
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from paths_of(inner, (*path, at))


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_every_value_of_a_mixed_document_is_found(newline: str) -> None:
    text = MIXED.replace("\n", newline)
    assert toml_lines(text).by_path == {(): 1, **LINES}
    assert set(paths_of(tomllib.loads(text))) == {(), *LINES}


def test_what_is_not_there_is_looked_for_in_the_table_around_it() -> None:
    lines = toml_lines(MIXED)
    assert lines.line(("load", 1, "patterns", 0, "factor", 3)) == 18
    assert lines.line(("nowhere",)) == 1


KEYS = st.sampled_from(["a", "b-1", "'a b'", '"x.y"', '"\\u00e9\\""', "7"])
SCALARS = st.sampled_from(
    ["1", "-2.5e3", "inf", "true", '"]"', "'#'", '"""x\n\n"""', "'''\n'q''''", "07:32:00"]
)
BLANKS = st.sampled_from([" ", "\n", " # [c] = {\n", "\t"])


@st.composite
def values(draw: st.DrawFn, depth: int = 2) -> str:
    """Draw the text of a value: a plain one, a list over several lines, or an inline table."""
    form = draw(st.sampled_from(["scalar", "list", "table"])) if depth else "scalar"
    if form == "list":
        inner = draw(st.lists(values(depth - 1), max_size=3))
        return "[" + ",".join(draw(BLANKS) + one + draw(BLANKS) for one in inner) + "]"
    if form == "table":
        keys = draw(st.lists(KEYS, unique=True, max_size=3))
        return "{ " + ", ".join(f"{key} = {draw(values(depth - 1))}" for key in keys) + " }"
    return draw(SCALARS)


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, dict[TomlPath, int]]:
    """Draw a document, and the lines on which its headers and pairs begin."""
    text = ""
    lines: dict[TomlPath, int] = {}
    tables: dict[TomlPath, int] = {}
    path: TomlPath = ()
    for name in draw(st.lists(KEYS, unique=True, max_size=4)):
        for again in range(draw(st.integers(0, 2)) + 1):
            line = text.count("\n") + 1
            is_array = draw(st.booleans()) if again == 0 else bool(tables)
            if again and not tables:
                break
            key = tomllib.loads(f"{name} = 0").popitem()[0]
            tables = {(key,): again + 1} if is_array else {}
            path = (key, again) if is_array else (key,)
            text += f"[[ {name} ]]\n" if is_array else f"[{name}] # {name} = 1\n"
            lines[path] = line
            for inner in draw(st.lists(KEYS, unique=True, max_size=3)):
                text += draw(st.sampled_from(["", "\n", "# [[a]]\n"]))
                dotted = draw(st.sampled_from([inner, f"{inner} . deep.er"]))
                own = tomllib.loads(f"{inner} = 0").popitem()[0]
                lines[*path, own] = text.count("\n") + 1
                text += f"{dotted} = {draw(values())}\n"
    return text, lines


@given(documents())
def test_drawn_documents_have_their_values_where_they_were_written(
    drawn: tuple[str, dict[TomlPath, int]],
) -> None:
    text, written = drawn
    found = toml_lines(text).by_path
    assert {path: found[path] for path in written} == written
    assert set(found) == set(paths_of(tomllib.loads(text)))


@st.composite
def mutated(draw: st.DrawFn) -> str:
    lines: list[Any] = MIXED.splitlines(keepends=True)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        how = draw(st.sampled_from(["drop", "twice", "swap", "insert"]))
        if how == "drop" and len(lines) > 1:
            del lines[at]
        elif how == "twice":
            lines.insert(at, lines[at])
        elif how == "swap":
            lines[at], lines[0] = lines[0], lines[at]
        else:
            one = lines[at]
            where = draw(st.integers(0, len(one)))
            lines[at] = one[:where] + draw(st.sampled_from("'\"[]{}=.#,\n 0a")) + one[where:]
    return "".join(lines)


@given(mutated())
def test_whatever_the_standard_library_reads_is_found_and_nothing_else(text: str) -> None:
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert set(toml_lines(text).by_path) == set(paths_of(content))
