"""Values as text of another language: words of bash, scalars of YAML."""
