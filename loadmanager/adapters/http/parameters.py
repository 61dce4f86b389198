import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import parse_qsl

from aiohttp import web
from aiohttp.http import HttpVersion11
from aiohttp.web import RequestPayloadError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Strict, TypeAdapter, ValidationError

from loadmanager.adapters.http.routes import Refused

_WHOLE: Final = re.compile(r"-?[0-9]{1,19}")
_FLAGS: Final = {"true": True, "false": False}

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A name in a path: its JSON schema, and its description for documentation.

    The pattern of a ``strict`` parameter is checked here, because no other code checks it.
    """

    schema: Mapping[str, Any]
    description: str
    strict: bool = False

    def check(self, name: str, text: str) -> None:
        """Refuse text that is longer than the schema allows (412); the core checks the rest."""
        most = self.schema.get("maxLength")
        if most is not None and len(text) > most:
            raise Refused(412, f"{name} has {len(text)} characters; expected at most {most}")
        expected = self.schema.get("pattern")
        if self.strict and expected and not re.fullmatch(expected, text):
            wanted = self.description.rpartition(": ")[2].rstrip(".")
            raise Refused(412, f"{name} {text!a} is not valid; expected {wanted}")


class Query(BaseModel):
    """The query parameters of an operation, unknown ones ignored."""

    model_config = ConfigDict(
        extra="ignore", frozen=True, populate_by_name=True, use_attribute_docstrings=True
    )


def _flag(value: object) -> object:
    return _FLAGS.get(value.lower(), value) if isinstance(value, str) else value


def _whole(value: object) -> object:
    return int(value) if isinstance(value, str) and _WHOLE.fullmatch(value) else value


# Pydantic alone would also take "yes", "1", "1_0" and " 1 ".
Flag = Annotated[bool, Strict(), BeforeValidator(_flag)]
"""``true`` or ``false``, in any case."""

Whole = Annotated[int, Strict(), BeforeValidator(_whole)]
"""A whole number in decimal digits."""


def read_query(model: type[Model], text: str) -> Model:
    """Raises `Refused`: a value is invalid, not UTF-8, or given twice and different (400)."""
    found: dict[str, list[str]] = {}
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict")
    except ValueError:
        raise Refused(400, "the query is not percent-encoded UTF-8") from None
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    values: dict[str, object] = {}
    for name, field in model.model_fields.items():
        key = field.alias or name
        given = found.get(key)
        if given is None:
            continue
        several = getattr(field.annotation, "__origin__", None) in {list, tuple}
        if not several and len(set(given)) > 1:
            raise Refused(400, f"{key} is given {len(given)} times, with different values")
        values[key] = given if several else given[0]
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise Refused(400, f"the query parameter {fault_text(error)}") from None


def fault_text(error: ValidationError) -> str:
    """Return the first faults of a value, each as place, value and what was expected."""
    faults = error.errors(include_url=False, include_context=False)
    lines = []
    for fault in faults[:3]:
        place = ".".join(str(part) for part in fault["loc"])
        shown = ascii(fault["input"])
        if len(shown) > 60:  # noqa: PLR2004 - enough characters to recognize the value
            shown = f"{shown[:60]}..."
        lines.append(f"{place or 'as a whole'} = {shown}: {fault['msg']}")
    more = f"; and {len(faults) - 3} more" if len(faults) > 3 else ""  # noqa: PLR2004 - those shown
    return "; ".join(lines) + more


_NAME: Final = {"type": "string", "pattern": r"^(?!\.{1,2}$)[-=:.A-Za-z0-9_]+$", "maxLength": 200}
_RANGE: Final = {"type": "string", "pattern": r"^0x[0-9a-f]{8}_0x[0-9a-f]{8}$"}
_BROKER: Final = {
    "type": "string",
    "pattern": r"^(\[[0-9a-fA-F:.]+\]|[-.A-Za-z0-9_]+):[1-9][0-9]{0,4}$",
}
_LETTERS: Final = "letters, digits and `-=:._`"

PATH_PARAMETERS: Final[Mapping[str, Parameter]] = {
    "tenant": Parameter(_NAME, "The name of a tenant: letters, digits and `-=:._`."),
    "namespace": Parameter(
        _NAME, "The name of a namespace of the tenant: letters, digits and `-=:._`."
    ),
    "bundle": Parameter(
        _RANGE, "The range of a present bundle of the namespace, `0xLLLLLLLL_0xUUUUUUUU`."
    ),
    "topic": Parameter(
        {"type": "string", "minLength": 1},
        "The local name of a topic, percent-encoded once; a `/` in it is `%2F`.",
    ),
    "domain": Parameter(
        {"type": "string", "enum": ["persistent", "non-persistent", "topic"]},
        "The domain of a topic.",
    ),
    "broker": Parameter(_BROKER, "The id of a broker, `host:port` of its web service."),
    "cluster": Parameter(_NAME, "The name of the cluster, `[cluster] name` in the configuration."),
    "policy": Parameter(_NAME, f"The name of an isolation policy: {_LETTERS}.", strict=True),
    "failure_domain": Parameter(_NAME, f"The name of a failure domain: {_LETTERS}.", strict=True),
    "group": Parameter(_NAME, f"The name of an anti-affinity group: {_LETTERS}.", strict=True),
    "key": Parameter(_NAME, "The name of a setting, percent-encoded."),
    "value": Parameter(
        {"type": "string", "minLength": 1, "maxLength": 1000},
        "The value, percent-encoded; a `/` in it is `%2F`.",
    ),
}


_WITHIN_S: Final = 30.0
_IDLE_S: Final = 10.0
# Up to here every integer has an exact float.
_EXACT: Final = 2.0**53


async def json_object(request: web.BaseRequest) -> dict[str, Any]:
    """Return the body's JSON object; an empty body is an empty object.

    Raises `Refused`: the body is too large (413), not JSON or not an object (400), or the request
    has an ``Expect`` header that is not supported (417).
    """
    text = await body_bytes(request)
    value = _parsed(text) if text.strip() else {}
    if not isinstance(value, dict):
        raise Refused(400, f"the body must be a JSON object, not {type(value).__name__}")
    return value


async def json_body(
    request: web.BaseRequest, form: "TypeAdapter[Any]", *, optional: bool = False
) -> Any:
    """Return the body as a value of ``form``; None if it is ``optional`` and missing.

    Raises `Refused`: as `json_object`; or the body has another content type (415) or form (400).
    """
    text = await body_bytes(request)
    if not text.strip():
        if optional:
            return None
        raise Refused(400, "the body is missing; expected JSON")
    if not _is_json(request.headers.get("Content-Type")):
        kind = request.content_type
        raise Refused(415, f"the body is {kind}; expected application/json")
    value = _parsed(text)
    try:
        # Through Python's parser, because its messages name the place, and without NaN.
        return form.validate_json(json.dumps(value, allow_nan=False), strict=True)
    except ValidationError as error:
        raise Refused(400, f"the body: {fault_text(error)}") from None
    except ValueError as error:
        raise Refused(400, f"the body: {error}") from None


async def body_bytes(
    request: web.BaseRequest, within_s: float = _WITHIN_S, idle_s: float = _IDLE_S
) -> bytes:
    """Return the bytes of the body.

    Raises `Refused`: 400, 413 and 417 as `json_object`; 408 if it is not complete in time, or no
    byte arrives for ``idle_s``.
    """
    await _invite(request)
    try:
        async with asyncio.timeout(within_s):
            return await _read(request, idle_s)
    except TimeoutError:
        raise _late(f"the body did not come within {within_s:g} s") from None
    except RequestPayloadError as error:
        raise Refused(400, f"the body cannot be read: {error}") from error


async def _read(request: web.BaseRequest, idle_s: float) -> bytes:
    body = bytearray()
    while True:
        try:
            async with asyncio.timeout(idle_s):
                came = await request.content.readany()
        except TimeoutError:
            raise _late(f"nothing of the body came for {idle_s:g} s") from None
        if not came:
            return bytes(body)
        body += came
        if len(body) > request.client_max_size:
            raise Refused(413, f"the body is longer than {request.client_max_size} bytes")


def _late(why: str) -> Refused:
    return Refused(408, why, {"Connection": "close"})


def _is_json(given: str | None) -> bool:
    """Return whether a content type is JSON; a missing one counts as JSON."""
    if given is None:
        return True
    kind = given.partition(";")[0].strip().lower()
    return kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text, parse_float=_number)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON: {error}") from None


def _number(text: str) -> float:
    """Return a JSON number, as an int if it is integral: 7.0 is 7."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < _EXACT else value


async def _invite(request: web.BaseRequest) -> None:
    expected = request.headers.get("Expect")
    if expected is None or request.version != HttpVersion11:
        return
    if expected.lower() != "100-continue":
        raise Refused(417, f"cannot meet the expectation {expected!r}")
    writer = request.writer
    await writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    # The interim response does not count: errors after it must still be answered.
    writer.output_size = 0
