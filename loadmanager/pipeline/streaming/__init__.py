"""Minutes and alerts while history is being written, each of them once."""
