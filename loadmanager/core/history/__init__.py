"""History: every load report and every decision, as lines of JSON.

The format is described in ``docs/history-format.md``, which is generated from `schema.KINDS`.
"""
