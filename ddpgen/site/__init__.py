"""A spec and the files below it, which a site and a team share."""
