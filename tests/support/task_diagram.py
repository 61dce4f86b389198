"""The states of a bundle task for docs/architecture.md, from the table in core/bundle_task.py.

Renew the page with: python tests/support/task_diagram.py
"""

import inspect
import re
from pathlib import Path

from loadmanager.core import bundle_task
from loadmanager.core.bundle_task import TRANSITIONS, TaskEvent, TaskState

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
BEGIN, END = "<!-- made from TRANSITIONS -->\n", "<!-- end -->\n"
_ROW = re.compile(r"((?:^ +# .+\n)+)^ +\(_S\.(\w+), _E\.(\w+)\): _S\.\w+,\n", re.MULTILINE)


def reasons() -> dict[tuple[TaskState, TaskEvent], str]:
    rows = _ROW.findall(inspect.getsource(bundle_task))
    return {
        (TaskState[state], TaskEvent[event]): " ".join(
            line.strip().removeprefix("# ") for line in comment.splitlines()
        )
        for comment, state, event in rows
    }


def diagram() -> str:
    why = reasons()
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {TaskState.PROPOSED.value}"]
    arrows = dict[tuple[TaskState, TaskState], list[str]]()
    for (was, event), then in TRANSITIONS.items():
        arrows.setdefault((was, then), []).append(event)
    lines += [f"    {was} --> {then}: {', '.join(of)}" for (was, then), of in arrows.items()]
    lines += ["```", "", "| state | event | next state | reason |", "|---|---|---|---|"]
    lines += [
        f"| `{was}` | `{event}` | `{then}` | {why[was, event]} |"
        for (was, event), then in TRANSITIONS.items()
    ]
    return "\n".join(lines) + "\n"


def renewed(page: str) -> str:
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}{diagram()}{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text("utf-8")), "utf-8")
