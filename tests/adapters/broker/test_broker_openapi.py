"""The published contract and the real server say the same."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import yaml
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from loadmanager.adapters.broker.contract import (
    MAX_TOPICS,
    PREFIX,
    BundleStatsBody,
    ErrorAnswer,
    LeaseAnswer,
    LeaseRequest,
    LoadRequest,
    PublishAnswer,
    RatesBody,
    StatsAnswer,
    TopicsAnswer,
)
from loadmanager.reference_broker.server import ServerOptions, broker_application

DOCS: Final = Path(__file__).parents[3] / "docs"
CONTRACT: Final[dict[str, Any]] = yaml.safe_load(
    (DOCS / "broker-contract.openapi.yaml").read_text()
)
BUNDLE_PATH: Final = f"{PREFIX}/bundles/t/n/0x00000000_0xffffffff"
PUBLISH_PATH: Final = "/publish/persistent/t/n/orders"


def validator(schema: dict[str, Any]) -> OAS31Validator:
    return OAS31Validator({**schema, "components": CONTRACT["components"]})


def resolved(node: dict[str, Any], whole: Any = CONTRACT) -> dict[str, Any]:
    if "$ref" not in node:
        return node
    found: Any = whole
    for part in node["$ref"].removeprefix("#/").split("/"):
        found = found[part]
    return dict(found)


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in CONTRACT["paths"].items():
        for method, operation in item.items():
            if method != "parameters":
                yield method.upper(), path, operation


def contents() -> Iterator[tuple[str, dict[str, Any]]]:
    for method, path, operation in operations():
        if "requestBody" in operation:
            yield f"{method} {path} request", operation["requestBody"]["content"]
        for status, answer in operation["responses"].items():
            yield f"{method} {path} {status}", resolved(answer).get("content", {})


def test_the_document_is_valid_openapi() -> None:
    assert [*OpenAPIV31SpecValidator(CONTRACT).iter_errors()] == []


def test_every_example_keeps_to_its_schema() -> None:
    checked = 0
    for name, content in contents():
        for body in content.values():
            examples = [one["value"] for one in body.get("examples", {}).values()]
            for example in [*examples, *([body["example"]] if "example" in body else [])]:
                errors = [error.message for error in validator(body["schema"]).iter_errors(example)]
                assert errors == [], name
                checked += 1
    assert checked > 20


def test_the_server_has_exactly_the_documented_operations() -> None:
    application = broker_application(None, ServerOptions())  # type: ignore[arg-type] # no request is made
    served = {
        (route.method, route.resource.canonical)
        for route in application.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    assert served == {(method, path) for method, path, _ in operations()}


MODELS: Final[dict[str, Any]] = (
    {"LeaseRequest": LeaseRequest, "Lease": LeaseAnswer, "LoadRequest": LoadRequest}
    | {"Stats": StatsAnswer, "BundleStats": BundleStatsBody, "Topics": TopicsAnswer}
    | {"Rates": RatesBody, "Published": PublishAnswer, "Error": ErrorAnswer}
)


@pytest.mark.parametrize("name", MODELS)
def test_the_fields_and_their_bounds_are_the_documented_ones(name: str) -> None:
    documented = CONTRACT["components"]["schemas"][name]
    coded = MODELS[name].model_json_schema(by_alias=True)
    assert coded["properties"].keys() == documented["properties"].keys()
    assert set(coded["required"]) == set(documented["required"])
    for field, schema in documented["properties"].items():
        default = resolved(schema).get("default", schema.get("default"))
        assert coded["properties"][field].get("default") == default
    bounds = bounds_in(documented, CONTRACT)
    assert all(None not in each for each in bounds.values())
    if name not in {"BundleStats", "Rates"}:  # of these "Stats" and "Topics" have the bounds
        assert bounds_in(coded, coded) == bounds


def bounds_in(schema: Any, whole: Any, where: str = "") -> dict[str, tuple[Any, Any]]:
    """Return the least and the most of each figure of a schema, by its path."""
    schema = resolved(schema, whole)
    found = {}
    kind = schema.get("type")
    if {"integer", "number"} & {*(kind if isinstance(kind, list) else [kind])}:
        found[where] = (schema.get("minimum"), schema.get("maximum"))
    inner = {f".{name}": each for name, each in schema.get("properties", {}).items()}
    if isinstance(schema.get("additionalProperties"), dict):
        inner[".*"] = schema["additionalProperties"]
    for name, each in inner.items():
        found |= bounds_in(each, whole, where + name)
    for choice in [*schema.get("oneOf", ()), *schema.get("anyOf", ())]:
        found |= bounds_in(choice, whole, where)
    return found


def test_the_documented_number_of_topics_is_the_one_that_is_read() -> None:
    schema = CONTRACT["components"]["schemas"]["Topics"]["properties"]["topics"]
    assert schema["maxProperties"] == MAX_TOPICS


ASKING: Final[dict[str, Any]] = {"agentEpoch": 5, "untilSeconds": None, "incarnation": None}
# In this order, on one broker: each line is what it needs for the next.
EXCHANGES: Final[list[tuple[str, str, Any, int]]] = [
    ("GET", "/", None, 200),
    ("GET", f"{PREFIX}/health", None, 200),
    ("GET", f"{PREFIX}/stats", None, 200),
    ("POST", PUBLISH_PATH, None, 503),
    ("PUT", f"{PREFIX}/lease", ASKING, 200),
    ("PUT", BUNDLE_PATH, {"agentEpoch": 5, "fencingToken": 7}, 503),
    ("PUT", f"{PREFIX}/lease", {**ASKING, "untilSeconds": 1e9}, 200),
    ("PUT", BUNDLE_PATH, {"agentEpoch": 5, "fencingToken": 7}, 503),
    ("PUT", f"{PREFIX}/lease", {**ASKING, "untilSeconds": 1e9, "incarnation": "first"}, 200),
    ("POST", PUBLISH_PATH, None, 421),
    ("PUT", BUNDLE_PATH, {"agentEpoch": 5, "fencingToken": 7}, 204),
    ("PUT", BUNDLE_PATH, {"agentEpoch": 5, "fencingToken": 6}, 412),
    ("POST", PUBLISH_PATH, {"a": "message"}, 200),
    ("GET", f"{BUNDLE_PATH}/topics", None, 200),
    ("GET", f"{PREFIX}/bundles/t/n/0x00000000_0x80000000/topics", None, 404),
    ("GET", f"{PREFIX}/bundles/t/n/0x1_0x2/topics", None, 400),
    ("POST", PUBLISH_PATH, {"a": "message" * 1000}, 413),
    ("POST", "/publish/sometimes/t/n/orders", None, 400),
    ("GET", f"{PREFIX}/stats", None, 200),
    ("PUT", f"{PREFIX}/lease", ASKING, 200),
    ("PUT", f"{PREFIX}/lease", {**ASKING, "agentEpoch": 4}, 409),
    ("PUT", f"{PREFIX}/lease", {}, 400),
    ("PUT", BUNDLE_PATH, {"agentEpoch": 4, "fencingToken": 7}, 409),
    ("PUT", BUNDLE_PATH, {}, 400),
    ("DELETE", f"{BUNDLE_PATH}?agentEpoch=4&fencingToken=7", None, 409),
    ("DELETE", f"{BUNDLE_PATH}?agentEpoch=5&fencingToken=6", None, 412),
    ("DELETE", f"{BUNDLE_PATH}?agentEpoch=5", None, 400),
    ("DELETE", f"{BUNDLE_PATH}?agentEpoch=5&fencingToken=7", None, 204),
    ("PUT", BUNDLE_PATH, {"agentEpoch": 5, "fencingToken": 7}, 412),
]


def documented_operation(method: str, path: str) -> dict[str, Any]:
    bare = path.partition("?")[0]
    for one_method, template, operation in operations():
        pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template))
        if one_method == method and re.fullmatch(pattern, bare):
            return operation
    raise AssertionError(f"{method} {bare} is not documented")


def check_answer(method: str, path: str, status: int, media_type: str, content: Any) -> None:
    """Check that ``status`` is documented by itself, and the content by its schema."""
    answers = documented_operation(method, path)["responses"]
    assert str(status) in answers, f"{method} {path}: {status} is not documented"
    answer = resolved(answers[str(status)])
    if "content" not in answer:
        assert content == b""
        return
    errors = validator(answer["content"][media_type]["schema"]).iter_errors(content)
    assert [error.message for error in errors] == []


async def test_every_real_answer_is_a_documented_one(serve_broker: Any) -> None:
    seen: set[tuple[str, str]] = set()
    async with (
        serve_broker(time.monotonic, version="1", process_id=1, max_body_bytes=2000) as served,
        aiohttp.ClientSession(served.url) as http,
    ):
        for method, path, body, status in EXCHANGES:
            async with http.request(method, path, json=body) as answer:
                assert answer.status == status, f"{method} {path} {body}"
                kind = answer.content_type
                content: Any = await answer.read()
                if kind == "application/json":
                    content = await answer.json()
                elif kind == "text/plain":
                    content = await answer.text()
                check_answer(method, path, status, kind, content)
                seen.add((documented_operation(method, path)["operationId"], str(status)))
    async with (
        serve_broker(time.monotonic, control_secret="x" * 16) as served,
        aiohttp.ClientSession(served.url) as http,
    ):
        for method, path, body, _ in EXCHANGES:
            operation = documented_operation(method, path)
            if "401" in operation["responses"]:
                async with http.request(method, path, json=body) as answer:
                    content = await answer.json()
                    check_answer(method, path, answer.status, answer.content_type, content)
                    seen.add((operation["operationId"], str(answer.status)))
    promised = {
        (operation["operationId"], status)
        for _, _, operation in operations()
        for status in operation["responses"]
    }
    # 408 takes a client that does not send its body; a test of the server has one.
    commands = {"getHealth", "getStats", "getTopics", "renewLease", "loadBundle", "unloadBundle"}
    unseen = promised - seen - {("publish", "408")}
    assert unseen == {(name, "default") for name in commands}


def test_the_page_names_every_path_of_the_contract() -> None:
    page = (DOCS / "broker-contract.md").read_text()
    for method, path, operation in operations():
        if "contract" in operation["tags"]:
            assert f"{method} {path}" in page
