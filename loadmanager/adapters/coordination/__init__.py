"""The parts of the `Coordination` port that do not depend on the coordination service."""
