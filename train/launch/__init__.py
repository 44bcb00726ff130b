"""The program that a launch artefact becomes: it checks, takes the directory, starts the workers, waits, decides.

supervisor.py has the flow of every host, and each tier has an adapter (local.py, …). Under Slurm, slurm/batch.py runs
as well, once for each start. Standard library only; runs on Python 3.9, before torch is imported.
"""
