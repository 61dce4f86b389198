"""The joint strategy: all resources at once, learned costs, moves by one convex potential.

`learning` has what traffic costs and what is particular to each broker, `persistence` how
much of a change of traffic lasts, `standing` where the brokers stand, `ages` how long they
have, `search` the moves, `deciding` one round of it. ``docs/joint-strategy.md`` explains why.
"""
