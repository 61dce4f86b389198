"""How the live page is laid out: where its parts stand, in which colours, and its words.

Heights and the widths of single words are left to the fonts of a machine; figures are masked.
"""

import json
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Page

LIVE: Final = Path(__file__).parents[1] / "live"
GOLDEN: Final = LIVE / "layout.json"
MEASURE: Final = LIVE / "layout.js"
NEAR_PX: Final = 2


def layout(page: Page) -> dict[str, Any]:
    found: dict[str, Any] = page.evaluate(MEASURE.read_text())
    return found


def differences(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Return where two layouts differ; boxes may by two pixels."""
    told = [
        f"{part}: {found[part]}; expected {expected[part]}"
        for part in ("colours", "words")
        if found[part] != expected[part]
    ]
    if (ours := found["boxes"]).keys() != (theirs := expected["boxes"]).keys():
        return [*told, f"boxes: {sorted(ours)}; expected {sorted(theirs)}"]
    for name, box in theirs.items():
        off = [abs(ours[name][key] - box[key]) for key in ("left", "width")]
        if max(off) > NEAR_PX or ours[name]["row"] != box["row"]:
            told.append(f"{name}: {ours[name]}; expected {box}")
    return told


def check_layouts(found: dict[str, dict[str, Any]], folder: Path) -> None:
    """Fail if layouts differ from those of the file; what was found is written to ``folder``."""
    (folder / GOLDEN.name).write_text(json.dumps(found, indent=1) + "\n")
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    assert found.keys() == golden.keys(), _renewed(folder)
    told = [f"{name}: {one}" for name in found for one in differences(golden[name], found[name])]
    assert told == [], "\n".join([*told, _renewed(folder)])


def _renewed(folder: Path) -> str:
    return f"if it is meant: cp {folder / GOLDEN.name} {GOLDEN}"
