"""The generator: one YAML job spec in, launch artefacts out. Never imports torch."""

__version__ = "0.1.0"
