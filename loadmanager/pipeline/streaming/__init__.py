"""The job ``stream``: minutes and alerts while history is being written, each exactly once."""
