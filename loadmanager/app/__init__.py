"""The application: what a sidecar does, on ports alone."""
