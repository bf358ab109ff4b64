"""Runs as jobs of a batch system. Each cluster is a folder.

slurm/  the first one: sbatch, squeue, requeue
"""
