"""Cutting bundles that have grown too large: which, where, and the cut itself."""

from loadmanager.core.splitting.cutting import CannotSplit, can_split, even_cuts, split
from loadmanager.core.splitting.finder import Split, SplitRules, Splits, find_splits
from loadmanager.core.splitting.positions import (
    SPLIT_ALGORITHMS,
    NoPositions,
    SplitAlgorithm,
    SplitAsk,
    SplitLimits,
    TopicLoad,
)

__all__ = [
    "SPLIT_ALGORITHMS",
    "CannotSplit",
    "NoPositions",
    "Split",
    "SplitAlgorithm",
    "SplitAsk",
    "SplitLimits",
    "SplitRules",
    "Splits",
    "TopicLoad",
    "can_split",
    "even_cuts",
    "find_splits",
    "split",
]
