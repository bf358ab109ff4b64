"""Starts processes.

Enters: a recipe and a `Request`. Leaves: a finished run, or one error that names the first cause.

    lifecycle.py   one run from its recipe to its end
    automatic.py   what a recipe leaves to us: network, weights, size, batch, optimizer, by the images
    batch_limit.py   the largest batch that pays: by a noise scale that is known, or by the number of updates
    checks.py      what would stop a training later, said before; a resume with other images or code: refused or noted
    prepare.py     the images of a recipe, scanned, checked and decoded before anything is trained
    folds.py       one training for each fold of the images
    contract.py    what a launcher must do
    last_start.py  how a run was started last: what a resume believes of it
    job_origin.py  what a run brings along from its time in the queue of a cluster
    preload.py     a process that begins with the command, and loads its code while that reads its flags
    process_settings.py  the environment of every training process
    local.py       this machine: torch's agent (workers/torch_agent.py), nothing outlives the launcher
    forked.py      processes that are forked from one which has loaded the code already: the runs of a study
    watchdog.py    processes that are stopped or hang where no heartbeat tells: at the start, at the end, the launcher
    horovod.py     the same for Horovod's processes, as a process of its own
    handshake.py   the start message that every process waits for: logs/start.json
    clusters/      the same as a job of a cluster: script, submission, states
    restart.py     on how many processes a run is started again, when one has failed
    failure.py     how a process says why it failed, and how the launcher finds the first cause
"""
