"""A second cluster, to prove the contract: a queue of this machine whose jobs are process groups.

cluster.py           the contract of clusters, and nothing else of turnaround is told of it but a row of CLUSTERS
runner.py            the process that waits for a job's release, runs its script and notes how it goes
test_shell_queue.py  train, resume, requeue and cancel through it, with real trainings
"""
