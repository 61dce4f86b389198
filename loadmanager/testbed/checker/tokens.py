"""Fencing tokens never go back, and each belongs to one broker."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from loadmanager.core.ids import BundleId
from loadmanager.testbed.checker.publishing import Publish
from loadmanager.testbed.checker.serving import Segment, Spell, segments


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A broker acted under a token at ``at_s``: it began to serve, or took a message."""

    at_s: float
    fencing_token: int
    broker: str
    bundle: BundleId
    what: str


@dataclass(frozen=True, slots=True)
class TokenFault:
    """``later`` came after ``earlier``, under a lower token, or as another's under the same."""

    earlier: Use
    later: Use

    def __str__(self) -> str:
        """Return it as a sentence."""
        one, other = self.earlier, self.later
        return (
            f"{other.broker} {other.what} {other.bundle} under token {other.fencing_token} at "
            f"{other.at_s:.3f} s, after {one.broker} {one.what} {one.bundle} under "
            f"{one.fencing_token} at {one.at_s:.3f} s"
        )


def token_faults(spells: Iterable[Spell], publishes: Iterable[Publish]) -> list[TokenFault]:
    """Return where a token was used after a higher one, or by a second broker.

    Looked at for each part of the hash circle by itself: a bundle and the parts it was
    cut into share topics, and the parts' tokens are the higher ones. Answers to
    clients count as much as the records of brokers.
    """
    uses = [*_began(spells), *_took(publishes)]
    made_of = segments(use.bundle for use in uses)
    at: defaultdict[Segment, list[Use]] = defaultdict(list)
    for use in uses:
        for segment in made_of[use.bundle]:
            at[segment].append(use)
    faults = {fault: None for segment in sorted(at) for fault in _faults(at[segment])}
    return sorted(faults, key=lambda fault: fault.later.at_s)


def _began(spells: Iterable[Spell]) -> Iterator[Use]:
    for one in spells:
        yield Use(
            at_s=one.start_s,
            fencing_token=one.fencing_token,
            broker=one.broker,
            bundle=one.bundle,
            what="began",
        )


def _took(publishes: Iterable[Publish]) -> Iterator[Use]:
    for one in publishes:
        if one.acknowledgement is not None:
            yield Use(
                at_s=one.acknowledgement.clock_s,
                fencing_token=one.acknowledgement.fencing_token,
                broker=one.broker,
                bundle=one.acknowledgement.bundle,
                what="took a message of",
            )


def _faults(uses: Sequence[Use]) -> Iterator[TokenFault]:
    """Yield each use below the highest token before it. Uses at one instant have no order."""
    highest: Use | None = None
    for use in sorted(uses, key=lambda one: (one.at_s, one.fencing_token)):
        if highest is None or use.fencing_token > highest.fencing_token:
            highest = use
        elif use.fencing_token < highest.fencing_token or use.broker != highest.broker:
            yield TokenFault(highest, use)
