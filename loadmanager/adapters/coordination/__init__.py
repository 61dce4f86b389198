"""What every adapter of the `Coordination` port does alike, whatever the service is."""
