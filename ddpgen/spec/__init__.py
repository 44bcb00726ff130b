"""YAML to a job: the fields, what is read of a file with its positions, and the rules between fields. Pure."""
