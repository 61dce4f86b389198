"""Compare recorded decisions, and print how many there are: python count.py [FOLDER ...].

Without a folder it takes the part of them that is kept beside this file; ``--all`` takes
the whole set, which LOADMANAGER_VECTORS names. It prints one Markdown table a folder and
ends with 1 if anything is decided differently.
"""

import os
import sys
from dataclasses import astuple
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "support"))

from vector_checks import SUFFIX, Count, Differs, compare  # noqa: E402 - found by the line above

HEAD: Final = (
    "| algorithm | scenarios | rounds | compared | in part | left out | otherwise | equal |",
    "|---|---:|---:|---:|---:|---:|---:|---|",
)


def table(folder: Path) -> tuple[list[str], bool]:
    """Return the lines of the table for one folder, and whether all in it is equal."""
    lines, total, equal = [*HEAD], Count(), True
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        name = path.name.removesuffix(SUFFIX)
        try:
            count = compare(path)
        except Differs as difference:
            lines.append(f"| {name} | | | | | | | **no**: {difference} |")
            equal = False
            continue
        lines.append(_row(name, count, "yes"))
        total = Count(*map(sum, zip(astuple(total), astuple(count), strict=True)))
    return [*lines, _row("**all**", total, "yes" if equal else "**no**")], equal


def _row(name: str, count: Count, equal: str) -> str:
    return f"| {name} | {' | '.join(f'{number:,}' for number in astuple(count))} | {equal} |"


def main(arguments: list[str]) -> int:
    """Print the tables; return 1 if anything differs, 2 if there is nothing to compare."""
    folders = [Path(one) for one in arguments if one != "--all"]
    if "--all" in arguments and (whole := os.environ.get("LOADMANAGER_VECTORS")):
        folders.append(Path(whole))
    elif "--all" in arguments:
        sys.stderr.write("--all: LOADMANAGER_VECTORS is unset; expected a folder of *.jsonl.gz\n")
        return 2
    status = 0
    for folder in folders or [HERE]:
        if not any(folder.glob(f"*{SUFFIX}")):
            sys.stderr.write(f"{folder}: no *{SUFFIX} in it; expected recorded decisions\n")
            return 2
        lines, equal = table(folder)
        sys.stdout.write("\n".join(lines) + "\n")
        status = status if equal else 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
