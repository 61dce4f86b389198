"""Java's properties files, read as Java reads them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JJavaError

from loadmanager.adapters.zookeeper.embedded import EmbeddedZooKeeperError, find_java
from loadmanager.config.pulsar_import import parse_properties


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("a=1\nb:2\r\nc 3\rd\t=\t4", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        ("# a=1\n  ! b=2\n\n \t\nc=3", {"c": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ("a= one two  ", {"a": "one two  "}),
        ("a==1\nb=:2", {"a": "=1", "b": ":2"}),
        ("a", {"a": ""}),
        ("=1", {"": "1"}),
        ("a=one,\\\n   two,\\\n#three", {"a": "one,two,#three"}),
        ("# a=1\\\nb=2", {"b": "2"}),
        ("a=1\\\n\nb=2", {"a": "1", "b": "2"}),
        ("a=1\\\\\nb=2\\", {"a": "1\\", "b": "2"}),
        (r"a\ b\=c\:d=\t\n\r\f\q\\", {"a b=c:d": "\t\n\r\fq\\"}),
        (r"a=\u00e4\u20AC\ud83d\ude00", {"a": "\u00e4\u20ac\U0001f600"}),
    ],
)
def test_keys_and_values_are_found(text: str, found: dict[str, str]) -> None:
    assert parse_properties(text) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a=1\n\nb=2\\\n3\\u12G4", r"line 3: '\\\\u12G4'; expected four hexadecimal digits"),
        ("a=\\u12", r"line 1: '\\\\u12'; expected four hexadecimal digits"),
        ("a=\\ud83d", "line 1: .* half a character"),
    ],
)
def test_an_escape_of_no_character_is_an_error_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_properties(text)


@pytest.fixture(scope="module")
def java() -> Iterator[Any]:
    try:
        program = find_java()
    except EmbeddedZooKeeperError as error:
        pytest.skip(str(error))
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    gateway = JavaGateway.launch_gateway(
        classpath=str(jar), java_path=str(program), die_on_exit=True
    )
    yield gateway.jvm
    gateway.shutdown()


@pytest.mark.thorough
@settings(max_examples=2_000, deadline=None)
@given(text=st.text(st.sampled_from("ab#!=: \t\f\r\n\\u0041\u00e9"), max_size=40))
def test_whatever_is_written_java_reads_the_same(java: Any, text: str) -> None:
    theirs = java.java.util.Properties()
    try:
        theirs.load(java.java.io.StringReader(text))
    except Py4JJavaError:
        with pytest.raises(ValueError, match="hexadecimal digits"):
            parse_properties(text)
    else:
        # A single backslash at the end of a file gives Java an empty key.
        ours, found = parse_properties(text), dict(theirs)
        assert {**ours, "": ""} == {**found, "": ""}
