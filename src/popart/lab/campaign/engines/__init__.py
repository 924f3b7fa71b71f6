"""Engines of a campaign: processes of this machine, tasks of a Ray cluster, an array job of SLURM."""
