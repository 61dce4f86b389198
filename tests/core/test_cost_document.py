"""What a cost model file may hold, and what is said of one that may not be."""

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from loadmanager.core.cost.document import (
    MOST_BYTES,
    ClassCosts,
    CostDocument,
    Quality,
    Term,
    costs_to_json,
    decode_costs,
    encode_costs,
    pack_costs,
)
from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BrokerId

LEARNED = CostDocument(
    cluster="standalone",
    made_at_ms=2_000,
    since_ms=0,
    until_ms=1_000,
    classes={
        "big": ClassCosts(
            resources={"cpu": {"msgs_in_per_s": Term(0.01, 0.008, 0.012)}},
            brokers=(BrokerId("a:1"), BrokerId("b:1")),
            minutes=1440,
            typical={"msgs_in_per_s": 5000.0},
        )
    },
    backgrounds={BrokerId("a:1"): {"cpu": Term(5.0, 4.0, 6.0)}},
    quality={"big": {"cpu": Quality(mape=0.05, coverage=0.9, held_out_minutes=600)}},
)

Spoil = Callable[[dict[str, Any]], object]


def test_a_document_is_read_as_it_was_written_plain_and_compressed() -> None:
    assert decode_costs("file", encode_costs(LEARNED)) == LEARNED
    assert decode_costs("file", gzip.compress(encode_costs(LEARNED))) == LEARNED
    assert decode_costs("znode", pack_costs(LEARNED)) == LEARNED


def test_a_large_document_is_stored_compressed() -> None:
    brokers = {BrokerId(f"broker-{number}:8080"): {"cpu": Term(1, 1, 1)} for number in range(2_000)}
    large = replace(LEARNED, backgrounds=MappingProxyType(brokers))
    stored = pack_costs(large)
    assert len(stored) < len(encode_costs(large)) / 10
    assert decode_costs("znode", stored) == large


def test_fields_of_later_versions_are_left_alone() -> None:
    found = {**costs_to_json(LEARNED), "drift": {"a:1": 0.5}}
    assert decode_costs("file", json.dumps(found).encode()) == LEARNED


def big(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["classes"]["big"]
    return found


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda d: d.update(format=2), "format = 2; expected 1"),
        (lambda d: d.pop("format"), "format is missing"),
        (lambda d: d.update(until_ms=-1), "until_ms = -1; expected milliseconds since 1970"),
        (lambda d: d.update(since_ms=1_001), "until_ms = 1000; expected since_ms (1001) or later"),
        (lambda d: d.update(made_at_ms="now"), "made_at_ms = 'now'"),
        (lambda d: d.update(cluster="x" * 201), "at most 200 characters"),
        (lambda d: d.update(cluster=None), "cluster = None"),
        (lambda d: d.update(classes=[]), "classes = []; expected an object"),
        (lambda d: d.update(classes={"x" * 201: {"minutes": 1}}), "at most 200 characters"),
        (
            lambda d: d.update(classes={str(n): {} for n in range(101)}),
            "at most 100 entries instead of 101",
        ),
        (lambda d: d.update(quality={"small": {}}), "classes that have costs, no others"),
        (lambda d: d.update(quality={str(n): {} for n in range(101)}), "at most 100 entries"),
        (lambda d: d["quality"]["big"].update(gpu={}), "quality.big.gpu"),
        (lambda d: d["quality"]["big"]["cpu"].update(coverage=1.1), "a fraction from 0 to 1"),
        (lambda d: d["quality"]["big"]["cpu"].update(mape=None), "quality.big.cpu.mape = None"),
        (lambda d: d["quality"]["big"]["cpu"].update(move_mape=-1), "move_mape = -1"),
        (lambda d: d["backgrounds"].update(nowhere={}), "broker 'nowhere' is not valid"),
        (lambda d: d["backgrounds"]["a:1"].update(cpu=7), "backgrounds.a:1.cpu = 7"),
        (lambda d: big(d).update(brokers=["a"]), "classes.big.brokers"),
        (lambda d: big(d).update(brokers=["a:1"] * 10_001), "at most 10000 brokers"),
        (lambda d: big(d).pop("minutes"), "classes.big.minutes is missing"),
        (lambda d: big(d)["typical"].update(msgs_per_s=1), "classes.big.typical.msgs_per_s"),
        (lambda d: big(d)["typical"].update(topics=1e16), "a finite number from 0 to 1e+15"),
        (lambda d: big(d)["resources"].update(gpu={}), "none but cpu, memory"),
        (lambda d: big(d)["resources"]["cpu"].update(messages={}), "none but msgs_in_per_s"),
        (
            lambda d: big(d)["resources"]["cpu"]["msgs_in_per_s"].update(low=0.02),
            "value = 0.01; expected a number from low (0.02) to high (0.012)",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_place(spoil: Spoil, told: str) -> None:
    document = costs_to_json(LEARNED)
    spoil(document)
    with pytest.raises(MalformedContent) as raised:
        decode_costs("model.json", json.dumps(document).encode())
    assert str(raised.value).startswith("model.json: ")
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "expected a whole one"),
        (b"\x00\x01", "expected JSON, plain, zlib or gzip"),
        (pack_costs(LEARNED)[:40], "expected a JSON object in UTF-8"),
        (gzip.compress(encode_costs(LEARNED))[:-9], "a compressed text that is cut off"),
        (gzip.compress(b"{" + b" " * MOST_BYTES), "more than 8388608 bytes"),
        (b"{" + b" " * MOST_BYTES, "more than 8388608 bytes"),
        (b'{"format": NaN}', "expected a finite number"),
    ],
)
def test_what_is_no_document_at_all_is_refused(data: bytes, told: str) -> None:
    with pytest.raises(MalformedContent, match=told):
        decode_costs("file", data)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_nothing_is_written_that_would_not_be_read(value: float) -> None:
    wrong = replace(LEARNED, backgrounds={BrokerId("a:1"): {"cpu": Term(value, 0, 1)}})
    with pytest.raises(MalformedContent):
        encode_costs(wrong)
