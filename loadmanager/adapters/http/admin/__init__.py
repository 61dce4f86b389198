"""The admin REST, a small module for each resource; `operations` tells how they are declared."""
