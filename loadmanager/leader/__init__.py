"""The leader: election, term, task controller, rounds, placement and reconciliation."""
