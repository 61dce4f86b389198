"""The leader's side: election, term, task controller, rounds, placement, reconciliation."""
