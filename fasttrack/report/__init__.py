"""The design report: one page, rendered from evidence, from which a person decides."""
