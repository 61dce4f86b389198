"""Which broker owns a topic: the owner resolver and the lookup service."""
