"""Models of the cost of serving a bundle."""
