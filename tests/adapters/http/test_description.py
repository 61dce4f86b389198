"""The API's description: true of the routes, and valid."""

import json
from collections import Counter

import pytest
from openapi_spec_validator import validate
from surface import surface

from loadmanager.adapters.http.describing import openapi_document
from loadmanager.adapters.http.operations import PATH_PARAMETERS, Operation, all_replies
from loadmanager.adapters.http.routes import Role
from tests.adapters.http.conftest import RunningServer

OPERATIONS = surface()


def names(one: Operation) -> str:
    return f"{one.method} {one.path}"


async def test_the_document_is_valid_openapi(server: RunningServer) -> None:
    got = await server.ask("/openapi.json")
    assert (got.status, got.headers["Content-Type"]) == (200, "application/json")
    served = got.json()
    every = json.loads(json.dumps(openapi_document(OPERATIONS, "1.2.3")))
    for document in (served, every):
        validate(document)
    paths = ("/openapi.json", "/admin/v2/brokers/health", "/lookup/v2/destination")
    assert [path in served["paths"] for path in paths] == [True, True, False]
    assert served["info"] == every["info"]


def test_nothing_is_declared_twice() -> None:
    assert not [name for name, count in Counter(map(names, OPERATIONS)).items() if count > 1]


@pytest.mark.parametrize("one", OPERATIONS, ids=names)
def test_each_operation_says_enough(one: Operation) -> None:
    assert one.summary.endswith(".")
    assert set(one.captures) <= {*PATH_PARAMETERS, *one.parameters}
    assert len(set(one.captures)) == len(one.captures)
    assert any(reply.status < 400 or reply.status == 410 for reply in one.replies)
    assert all(reply.meaning.endswith(".") for reply in all_replies(one))


@pytest.mark.parametrize("one", OPERATIONS, ids=names)
def test_what_changes_something_is_for_administrators(one: Operation) -> None:
    assert one.method == "GET" or one.role is Role.ADMIN
