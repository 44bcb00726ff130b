"""A Slurm cluster: slurm.sbatch."""
