"""The program that a launch artefact becomes: it checks, takes the directory, starts the workers, waits, decides.

One flow on every host (supervisor.py), one adapter a tier (local.py, …); under Slurm slurm.py besides, once a
start. Standard library only; runs on Python 3.9, before torch is imported.
"""
