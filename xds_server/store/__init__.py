"""The fleet's history on disk: what was decided, refused, changed and ordered, and when."""
