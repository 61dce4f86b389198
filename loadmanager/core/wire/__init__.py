"""Values to and from the JSON in znodes, in Pulsar's own forms where Pulsar has them.

Fields added to a form of Pulsar's are in one nested object, ``"loadmanager"``, so
that they never collide with fields that Pulsar may add. Unknown fields are ignored;
content that is truncated, foreign or of a wrong type raises `MalformedContent`, which names
the field, what was found and what was expected.
"""
