"""What has been launched: submit it to Slurm or SkyPilot, say how it stands, show its output, stop it.

Knows the tiers from outside only: by the files of the checkpoint directory, by the hosts driver's
options, by what the programs of Slurm and SkyPilot say. Nothing of it is loaded to render.
"""
