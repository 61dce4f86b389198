"""What a replay needs before it gives advice, each with its reason."""

from typing import Final

SETTLE_S: Final = 1800.0
"""A combination is not scored for so long after its bundles were spread anew.

As long as a moved bundle rests by default: until then it has not chosen where most bundles lie.
"""

STRETCH_S: Final = 600.0
"""Combinations are compared in stretches of so long; ten rounds of the default interval."""

SEGMENT_H: Final = 2.0
"""How long a segment is, each with a start of its own: what one start favours, others do not."""

LEAST_HISTORY_S: Final = 2 * SEGMENT_H * 3600
"""Two starts: with one, nothing shows how much the start itself decided."""

LEAST_STRETCHES: Final = 8
"""With eight of eight, the better one by chance alone in 1 of 256 cases."""

LEAST_DECISIONS: Final = 20
"""Moves of the recorded leader: how well loads are predicted is measured at these alone."""

LEAST_OWN_DECISIONS: Final = 5
"""Moves of a combination in its replay: one that hardly moves is judged by where it began."""

LEAST_GAIN: Final = 0.10
"""Of the penalty; by so much two replays of one strategy may differ that chooses by chance."""

LEAST_BETTER: Final = 0.8
"""Of the stretches; in less of them, what a strategy gains depends on the hour."""
