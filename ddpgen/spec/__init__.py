"""YAML → a job: the fields, the tree of a file with its positions, and the rules between fields. Pure."""
