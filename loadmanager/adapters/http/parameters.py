import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, BeforeValidator, ConfigDict, Strict, ValidationError

from loadmanager.adapters.http.replies import Refused

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
    """Return the query's parameters; a list parameter may be given several times.

    Raises `Refused`: a value is invalid, not UTF-8, or given twice with different values (400).
    """
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
