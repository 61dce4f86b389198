"""The joint strategy: all resources at once, learned costs, moves by one convex potential.

`learning` estimates the cost of traffic and the background and speed of each broker,
`persistence` how much of a change of traffic lasts, `standing` the predicted usage of the
brokers, and `ages` how long they have been above the level; `search` finds the moves, and
`deciding` is one round. ``docs/joint-strategy.md`` explains the design.
"""
