"""What operators configured in a scenario: which brokers may serve which namespace."""

from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator, Field

from loadmanager.config.forms import Form, Section
from loadmanager.core.ids import BrokerId, Namespace
from loadmanager.core.patterns import checked
from loadmanager.core.policies import IsolationPolicy, Policies
from loadmanager.simulator.scenario.brokers import BrokerClass
from loadmanager.simulator.scenario.loads import Load

Pattern = Annotated[str, AfterValidator(checked), Form("a regular expression")]


class Isolation(Section):
    """An isolation policy: namespaces that only certain brokers serve, and no others there.

    All are regular expressions that must match as a whole: namespaces the name, brokers
    `class-number`.
    """

    name: str = Field(min_length=1, description="Of the policy.")
    namespaces: Annotated[
        tuple[Pattern, ...],
        Field(strict=False, min_length=1, description="The namespaces that it is about."),
    ]
    primary: Annotated[
        tuple[Pattern, ...],
        Field(strict=False, min_length=1, description="The brokers that serve them."),
    ]
    secondary: Annotated[
        tuple[Pattern, ...],
        Field(strict=False, description="Brokers that help while too few primary ones are fit."),
    ] = ()
    min_limit: int = Field(1, ge=0, le=100_000, description="How many primary ones are enough.")
    usage_threshold: float = Field(
        1.0, ge=0, le=1, description="Usage up to which a primary broker is fit."
    )


def policies_of(
    isolation: Iterable[Isolation],
    loads: Iterable[Load],
    classes: Iterable[tuple[BrokerClass, Iterable[BrokerId]]],
) -> Policies:
    """Return the policies of a scenario, as a leader has them; ``classes`` with their brokers."""
    groups: dict[Namespace, str] = {}
    for load in loads:
        if load.anti_affinity_group:
            groups.setdefault(load.namespace, load.anti_affinity_group)
    return Policies(
        isolation={
            one.name: IsolationPolicy(
                namespaces=one.namespaces,
                primary=one.primary,
                secondary=one.secondary,
                min_limit=one.min_limit,
                usage_threshold=one.usage_threshold,
            )
            for one in isolation
        },
        anti_affinity=groups,
        domains={
            broker: group.failure_domain
            for group, brokers in classes
            if group.failure_domain
            for broker in brokers
        },
    )
