"""A job to ranks, commands and directives: every decision that an artefact only writes down. Pure."""
