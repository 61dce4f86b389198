from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

Run = Mapping[str, Any]
_WIDTH, _HEIGHT = 860, 420
_LEFT, _TOP, _RIGHT, _BOTTOM = 60, 40, 220, 50
_FONT: Final = 'font-family="sans-serif" font-size="12" fill="#222"'
_TITLE: Final = "Messages per second of the fullest broker over the mean, in windows of 10 s"
_COLOURS: Final = (
    "#0b6e4f",
    "#6fbf9f",
    "#e08e00",
    "#235789",
    "#e58b8d",
    "#f3c677",
    "#8fb1d3",
    "#c1292e",
    "#7b2d8b",
    "#c9a0d4",
)
NAMES: Final = {
    "attach": "loadmanager attach",
    "attach-extensible": "loadmanager attach, extensible",
    "threshold": "ThresholdShedder",
    "threshold-no-floor": "ThresholdShedder, no floor",
    "avg": "AvgShedder",
    "avg-no-floor": "AvgShedder, no floor",
    "transfer": "TransferShedder",
    "transfer-no-floor": "TransferShedder, no floor",
    "joint": "loadmanager attach, joint",
    "joint-extensible": "loadmanager attach, joint, extensible",
}
_HEAD: Final = (
    "| balancer | manager | watched | at most 1.10 after | at the end | moves | pause p50 "
    "| pause p99 | failed sends | fullest broker's CPU at the end | CPU of the controller "
    "| load average | commit |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|\n"
)


def table(runs: Sequence[Run]) -> str:
    return _HEAD + "".join(f"| {' | '.join(_row(run))} |\n" for run in runs)


def _row(run: Run) -> list[str]:
    near_s, cores = run["near_after_s"], run["cores_of_ours"]
    return [
        NAMES[run["balancer"]],
        run["manager"],
        f"{run['seconds']:.0f} s",
        "not" if near_s is None else f"{near_s:.0f} s",
        f"{run['max_over_mean'][-1][1]:.2f}",
        str(len(run["moves"])),
        _pause(run["pause_p50_s"]),
        _pause(run["pause_p99_s"]),
        str(run["failed_sends"]),
        _fullest(run),
        "in the broker" if cores is None else f"{100 * cores:.1f} % of a core",
        f"{run['load_average']:.1f}" if "load_average" in run else "not noted",
        run["commit"],
    ]


def _fullest(run: Run) -> str:
    if "cores" not in run:
        return "not noted"
    used = zip(run["cores_used_at_the_end"], run["cores"], strict=True)
    return f"{100 * max(one / limit for one, limit in used):.0f} %"


def _pause(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds else "under 0.1 s"


def picture(runs: Sequence[Run]) -> str:
    longest_s = max((run["seconds"] for run in runs), default=60.0)
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(at_s: float) -> float:
        return _LEFT + width * at_s / longest_s

    def y(ratio: float) -> float:
        return _TOP + height * (3.0 - ratio) / 2.0

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" {_FONT}>',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="14">{_TITLE}</text>',
    ]
    for step in range(5):
        ratio = 1.0 + step / 2
        parts.append(_line(_LEFT, y(ratio), _LEFT + width, y(ratio), "#ddd"))
        parts.append(f'<text x="{_LEFT - 34}" y="{y(ratio) + 4:.0f}">{ratio:.1f}</text>')
    for at_s in range(0, int(longest_s) + 1, 30):
        parts.append(_line(x(at_s), _TOP + height, x(at_s), _TOP + height + 5, "#222"))
        parts.append(
            f'<text x="{x(at_s):.0f}" y="{_TOP + height + 20}" text-anchor="middle">{at_s}</text>'
        )
    parts.append(f'<text x="{_LEFT + width / 2}" y="{_HEIGHT - 10}">seconds</text>')
    for place, run in enumerate(runs):
        colour = _COLOURS[list(NAMES).index(run["balancer"]) % len(_COLOURS)]
        points = " ".join(f"{x(at_s):.1f},{y(ratio):.1f}" for at_s, ratio in run["max_over_mean"])
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        at_y = _TOP + 10 + 22 * place
        parts.append(_line(_LEFT + width + 12, at_y, _LEFT + width + 36, at_y, colour))
        name = escape(NAMES[run["balancer"]])
        parts.append(f'<text x="{_LEFT + width + 42}" y="{at_y + 4}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="2"/>'
