"""Artefacts and code → a directory that is written whole or not at all."""
