"""The broker contract over HTTP, and the client by which an agent commands its broker."""
