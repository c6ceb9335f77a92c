"""A kit: a directory with which the owner of a machine that we lack measures a model there, and sends back the evidence."""
