"""Many configurations of one recipe, or of somebody else's program, on this machine. No torch.

Enters: a recipe or a command, and the configurations to compare. Leaves: run directories, all of one study.

    subject.py   what a study is of: its runs planned, refused early, and run here
    plan.py      which runs answer the question, and in which order
    program.py   somebody else's program: its command for each run
    outside.py   watches one run of such a program, and records what can be seen from outside
    state.py     where the study stands, read from its run directories
    on_cluster.py  the same as jobs of a cluster, which go on whoever follows them
    cluster_queue.py  asks a cluster when jobs of several sizes would start
    trial.py     what an estimate is about, and some seconds of it on this machine
    estimate.py  an answer from zero runs: a trial on this machine, and what it tells of others
    lifecycle.py runs what is missing, and only that
"""
