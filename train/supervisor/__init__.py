"""The program that a launch artefact becomes: it checks, takes the directory, starts the workers, waits, decides.

One flow for every tier (supervisor.py), one adapter a tier (local.py, …). Standard library only; runs
on Python 3.9, before torch is imported.
"""
