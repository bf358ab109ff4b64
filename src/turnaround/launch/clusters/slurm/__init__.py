"""Runs as jobs of a Slurm cluster. No torch: a login node has none.

Enters: a `SlurmJob`, which is a run directory, the words after `turnaround train`, and the user's `SlurmSettings`.
Leaves: a readable script (job.sh in the run directory), a submitted job, and its `JobState` whenever it is asked for.

    cluster.py      Slurm behind the contract of clusters (../contract.py)
    settings.py     what a job asks for: the user's slurm.toml, overridden by flags
    inventory.py    what the cluster has, whether a job's wishes can be met, and over how many hosts it is spread
    script.py       the batch script, as a pure function
    batch_hooks.py  what that script asks before and after each start
    interface.py    which network interface leads to the other hosts
    step.py         how the processes of one srun find each other
    client.py       sbatch, scontrol, squeue, sacct, scancel, each with a time limit
    states.py       where a job stands, read from what these print
    probe.py        whether the compute nodes see the run directory

What the job promises: before its time limit (or a pre-emption) every process of it gets SIGUSR2, `signal_lead_s`
seconds ahead, and again every two seconds until it has ended: the first may come before anybody listens. A program that
then saves and ends, with its run recorded as interrupted, is put back into the queue and resumed. Exit statuses are
those of errors.py; a cancelled job stays cancelled. On several hosts Gloo uses the interface that leads to the other
hosts (interface.py); `interface` in slurm.toml or GLOO_SOCKET_IFNAME in the environment decide otherwise. The run
directory and the cache of decoded images must be on a file system that all hosts share.
"""
