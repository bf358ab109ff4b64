"""Starts processes.

Enters: a `LaunchPlan` for a prepared run directory. Leaves: a finished run, or one error that names the first cause.

    contract.py   what a launcher must do
    local.py      this machine: torch.distributed.run, nothing outlives the launcher
    failure.py    how a process says why it failed, and how the launcher finds the first cause
"""
