"""Artefacts and code to a directory, written whole or not at all."""
