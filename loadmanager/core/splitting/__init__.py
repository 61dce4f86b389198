"""Splits bundles that have become too large, and merges small ones."""

from loadmanager.core.splitting.cutting import CannotSplit, can_split, even_cuts, parts_at, split
from loadmanager.core.splitting.finder import Split, SplitRules, Splits, find_splits
from loadmanager.core.splitting.merging import (
    CannotMerge,
    Merge,
    cut_again,
    merge,
    merged_by_order,
    merges_in,
    neighbours,
    whole_ordered,
)
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
    "CannotMerge",
    "CannotSplit",
    "Merge",
    "NoPositions",
    "Split",
    "SplitAlgorithm",
    "SplitAsk",
    "SplitLimits",
    "SplitRules",
    "Splits",
    "TopicLoad",
    "can_split",
    "cut_again",
    "even_cuts",
    "find_splits",
    "merge",
    "merged_by_order",
    "merges_in",
    "neighbours",
    "parts_at",
    "split",
    "whole_ordered",
]
