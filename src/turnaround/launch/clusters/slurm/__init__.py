"""Runs as jobs of a Slurm cluster. No torch: a login node has none.

Enters: a `SlurmJob`, which is a run directory, the words after `turnaround train`, and the user's `SlurmSettings`.
Leaves: a readable script (job.sh in the run directory), a submitted job, and its `JobState` whenever it is asked for.

    settings.py    what a job asks for: the user's slurm.toml, overridden by flags
    script.py      the batch script, as a pure function
    batch_hooks.py      what that script asks before and after each start
    interface.py   which network interface leads to the other hosts
    hosts.py       n[1-3] -> n1, n2, n3
    client.py      sbatch, scontrol, squeue, sacct, scancel, each with a time limit
    states.py      where a job stands, in one type
    job_status.py    what Slurm says of a job, in the run's status.json
    submission.py  a run becomes a job, once, wherever this is killed
    follow.py      jobs to their end; who follows can leave and come back
    spread.py      how many hosts, and how many processes on each
    cluster.py     what the cluster has, and whether a job's wishes can be met
    probe.py       whether the compute nodes see the run directory

How to use it:

    there = partitions()                                                      # None in its place: no cluster to ask
    settings = settings_for({"gpu": "v100"}, processes=8, device="auto", there=there)
    job = SlurmJob(directory=out, train=("photos", "--workers", "8"), working_directory=Path.cwd(), settings=settings)
    text = job_script(job)                                                    # what --dry-run prints
    notes = check(job, there)                                                 # InputError for what can never start
    require_visible(job.directory, settings)                                  # InputError when nodes do not see it
    job_id = submit_run(job)
    state = job_state(job_id)                                                 # state.is_over, .queue_time_s(), .hosts
    status = settle(RunDirectory(out), state)                                 # when it is over

What the job promises: before its time limit (or a pre-emption) every process of it gets SIGUSR2, `signal_lead_s`
seconds ahead, and again every two seconds until it has ended: the first may come before anybody listens. A program that
then saves and ends, with its run recorded as interrupted, is put back into the queue and resumed. Exit statuses are
those of errors.py; a cancelled job stays cancelled. On several hosts Gloo uses the interface that leads to the other
hosts (interface.py); `interface` in slurm.toml or GLOO_SOCKET_IFNAME in the environment decide otherwise. The run
directory and the cache of decoded images must be on a file system that all hosts share.
"""
