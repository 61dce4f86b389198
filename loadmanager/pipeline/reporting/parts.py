"""The parts of a report: title, content, and conclusions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from shlex import quote
from typing import Final

from loadmanager.charts import Html, folded, joined, section, tag


class Weight(IntEnum):
    ACT = 3
    LOOK = 2
    FINE = 1
    LACKING = 0


@dataclass(frozen=True, slots=True)
class Finding:
    weight: Weight
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    title: str
    body: Sequence[Html]
    findings: Sequence[Finding] = ()

    def html(self, anchor: str) -> Html:
        return section(self.title, said(self.findings), *self.body, anchor=anchor)


_TONES: Final = {Weight.ACT: "bad", Weight.LOOK: "known", Weight.FINE: "good"}
_LABELS: Final = {Weight.ACT: "Act:", Weight.LOOK: "Look:", Weight.FINE: "Fine:"}


def said(findings: Iterable[Finding]) -> Html:
    return joined(tag("p", *_labelled(one)) for one in findings)


def _labelled(finding: Finding) -> tuple[str, ...]:
    """Return a conclusion after a word for its importance, which is not shown by colour alone."""
    label = _LABELS.get(finding.weight)
    if label is None:
        return (finding.text,)
    return tag("strong", label, class_=_TONES[finding.weight]), " ", finding.text


def lacking(title: str, job: str, out: str, what: str = "") -> Part:
    command = f"loadmanager pipeline {job} --out {quote(out)}"
    words = [what or "There is nothing to show here yet. ", "To make it: ", tag("code", command)]
    return Part(title=title, body=[tag("p", *words)])


def figures(title: str, *body: Html) -> Html:
    return folded(title, *body)


def next_steps(findings: Iterable[Finding], most: int = 6) -> Html:
    order = sorted(findings, key=lambda one: -one.weight)
    chosen = [one for one in order if one.weight > Weight.LACKING][:most]
    if not chosen:
        return tag("p", "There is too little history yet to conclude anything.")
    return tag("ul", *(tag("li", *_labelled(one)) for one in chosen))
