import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

from loadmanager.core.errors import LoadManagerError
from loadmanager.core.ids import BrokerId, Namespace, parse_broker, parse_namespace
from loadmanager.core.shedding import SHEDDERS


class ConfigError(LoadManagerError):
    """The configuration cannot be run with. ``faults`` are all of its faults, one text each.

    Each names the place, the value found there and what was expected; a secret's value
    is never in it.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


class Contradiction(NamedTuple):
    """A key whose value conflicts with that of another key.

    ``because`` are the other keys as ``(section, key)``: it is not reported where one of them
    is wrong itself.
    """

    section: str
    key: str
    expected: str
    because: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, name: str, expected: str, *because: str) -> Self:
        """Return the contradiction of a key named ``section.key`` with others named so."""
        section, _, key = name.partition(".")
        others = tuple(
            (other, its_key) for other, _, its_key in (o.partition(".") for o in because)
        )
        return cls(section, key, expected, others)


class Section(BaseModel):
    """One ``[section]`` of the file.

    Strict: ``"7750"`` is no number and ``1`` is no switch, because a quietly converted
    value hides a mistake. Environment texts are converted before they come here.

    ``dynamic`` are the keys that can be changed while the sidecars run, for the whole
    cluster at once: all of them, those named, or none.
    """

    dynamic: ClassVar[frozenset[str] | bool] = False

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        # A rejected password must not show up in a traceback.
        hide_input_in_errors=True,
        validate_default=True,
        use_attribute_docstrings=True,
    )


@dataclass(frozen=True, slots=True)
class Form:
    """Marks a type with the words that say what it accepts, for messages and documents."""

    expected: str


BrokerName = Annotated[BrokerId, AfterValidator(parse_broker), Form("host:port")]

HttpUrl = Annotated[
    str,
    Field(pattern=r"^(https?://[^\s/?#]+)?$"),
    Form("http://host:port or https://host:port without a path, or empty"),
]

PulsarUrl = Annotated[
    str,
    Field(pattern=r"^(pulsar(\+ssl)?://[^\s/?#]+)?$"),
    Form("pulsar://host:port or pulsar+ssl://host:port, or empty"),
]

ListenHost = Annotated[
    str, Field(pattern=r"^[^\s/?#\[\]]*$"), Form("a host name or an address, or empty")
]

_WORD = Form("a name of letters, digits and any of . - _")
Word = Annotated[str, Field(pattern=r"^[A-Za-z][-\w.]*$"), _WORD]
WordOrUnset = Annotated[Word | None, _WORD]
ClusterName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][-\w.]*$"), _WORD]

Hosts = Annotated[
    str,
    Field(pattern=r"^[^\s/,]+:\d{1,5}(,[^\s/,]+:\d{1,5})*$"),
    Form("host:port, or several separated by commas without blanks"),
]

Chroot = Annotated[
    str,
    Field(pattern=r"^(/|(/[^\s/]+)*)$"),
    Form("empty, / for the root, or an absolute path without a slash at the end"),
]

Secret = Annotated[SecretStr, Field(strict=False)]

# TOML and JSON give lists, which a strict tuple refuses; the elements stay strict.
Names = Annotated[tuple[str, ...], Field(strict=False)]

Namespaces = Annotated[
    tuple[Annotated[Namespace, AfterValidator(parse_namespace)], ...],
    Field(strict=False),
    Form('a list of tenant/namespace, such as ["public/default"]'),
]


def _shedder(name: str) -> str:
    if name not in SHEDDERS:
        raise ValueError("no such strategy")
    return name


def plain_value(text: str) -> Any:
    """Return a number, switch, list or table if the text is one in JSON, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


SettingValue = bool | int | float | str | list[str]

ShedderName = Annotated[str, AfterValidator(_shedder)]


class ShadowSettings(Section):
    """A strategy that decides beside the active one, with settings of its own."""

    strategy: ShedderName
    settings: Mapping[str, SettingValue] = Field(default_factory=dict)

    @classmethod
    def of(cls, given: "str | ShadowSettings") -> "ShadowSettings":
        """Return what was given; a name alone has its default settings."""
        return cls(strategy=given) if isinstance(given, str) else given


def _distinct(given: tuple[str | ShadowSettings, ...]) -> tuple[str | ShadowSettings, ...]:
    if len({SHEDDERS[ShadowSettings.of(one).strategy] for one in given}) < len(given):
        raise ValueError("a strategy is given twice")
    return given


Shadows = Annotated[
    tuple[ShedderName | ShadowSettings, ...],
    Field(strict=False, max_length=3),
    AfterValidator(_distinct),
    Form(
        "a list of up to three different shedding strategies, each a name or a table with its "
        'settings, such as ["joint", {strategy = "threshold", settings = {threshold = 0.05}}]'
    ),
]
