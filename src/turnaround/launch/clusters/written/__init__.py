"""Clusters for which turnaround writes one readable file, and leaves the rest to their own tools.

Enters: a training and the user's wishes. Leaves: text, which SkyPilot's own client submits if asked to. Nothing is
followed or requeued by us: the file says what starts again after which exit status, and the cluster obeys. Never run on
a real cloud: .ci/clusters holds the files against the parsers of those programs, and tests run the commands in them as
local processes.

    task.py        what all have in common: settings, and the commands of one host
    kubernetes.py  a headless Service and an Indexed Job
    kubeflow.py    a TrainJob of Kubeflow Trainer, with its TrainingRuntime
    skypilot.py    a task of SkyPilot, on spot machines if asked for, and its submission
    hooks.py       called by those commands before and after each start
"""
