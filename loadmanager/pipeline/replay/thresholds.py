"""The requirements of advice from a replay, each with its reason."""

from typing import Final

SETTLE_S: Final = 1800.0
"""How long a combination is not scored after its bundles were spread anew.

It is the default cool-down of a moved bundle: until then it did not choose most owners.
"""

STRETCH_S: Final = 600.0
"""The length of stretches in which combinations are compared: ten default rounds."""

SEGMENT_H: Final = 2.0
"""The length of segments. Each has its own initial owners, so that no start favours one."""

LEAST_HISTORY_S: Final = 2 * SEGMENT_H * 3600
"""Two starts: with one, the effect of the start itself would be unknown."""

LEAST_STRETCHES: Final = 8
"""Eight of eight better stretches occur by chance in 1 of 256 cases."""

LEAST_DECISIONS: Final = 20
"""Moves of the recorded leader: errors of predicted loads are only measured at these."""

LEAST_OWN_DECISIONS: Final = 5
"""Moves of a combination: with fewer it is judged by its initial owners."""

LEAST_GAIN: Final = 0.10
"""Relative gain: two replays of one strategy with random choices may differ by this."""

LEAST_BETTER: Final = 0.8
"""Fraction of better stretches; below it the gain depends on the hour."""
