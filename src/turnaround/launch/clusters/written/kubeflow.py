"""Kubeflow Trainer 2: a TrainJob, and the TrainingRuntime that says which of its pods start again.

The rules of restarting are those of kubernetes.py. A TrainJob cannot carry them, and the runtimes that Kubeflow brings
along have none: so the file has a runtime of its own, of the same name and in the same namespace.
"""

from __future__ import annotations

from turnaround.launch.clusters.contract import TrainingJob, Wishes
from turnaround.launch.clusters.written.kubernetes import (
    failure_rules,
    mounts,
    pod_script,
    pod_task,
    resources,
    volumes,
)
from turnaround.launch.clusters.written.task import GRACE_S, HostTask, yaml_block, yaml_text

TITLE = "Kubeflow"
NODE = "node"
"""What Kubeflow calls the job, and the container in it, to which it gives the variables of torch.distributed.run."""


def kubeflow_file(training: TrainingJob, wishes: Wishes) -> str:
    """Return runtime and job; `kubectl apply -f` takes them as they are. Pure."""
    task = pod_task(training, wishes, title=TITLE)
    # Kubeflow's torch policy sets PET_NODE_RANK and PET_MASTER_ADDR; other PET_* are overruled by the script's flags.
    first = '"${TURNAROUND_FIRST_HOST:-$PET_MASTER_ADDR}"'
    # The runtime first, since kubectl makes them in the order of the file: the job refers to it.
    return _runtime(task) + _train_job(task, pod_script(task, rank='"$PET_NODE_RANK"', first_host=first))


def _runtime(task: HostTask) -> str:
    return f"""\
# {task.name}: {task.hosts} x {task.processes_here} processes, for Kubeflow Trainer 2.
# Submit: kubectl apply -f FILE. Watch: kubectl get trainjob {task.name}; kubectl logs -f job/{task.name}-{NODE}-0
# Written by turnaround and never run on a real cluster by its authors: read it before you trust it.
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata:
  name: {task.name}
  labels: {{trainer.kubeflow.org/framework: torch}}
spec:
  mlPolicy:
    numNodes: {task.hosts}
    torch: {{}}
  template:
    spec:
      replicatedJobs:
      - name: {NODE}
        replicas: 1
        template:
          metadata:
            labels: {{trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
          spec:
{yaml_block(failure_rules(task, container=NODE), indent=12)}
            template:
              spec:
                restartPolicy: Never
                terminationGracePeriodSeconds: {GRACE_S}
                containers:
                - name: {NODE}
{yaml_block(mounts(task), indent=18)}
{yaml_block(volumes(task), indent=16)}
"""


def _train_job(task: HostTask, script: str) -> str:
    return f"""\
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: {task.name}
spec:
  runtimeRef: {{kind: TrainingRuntime, name: {task.name}}}
  trainer:
    image: {yaml_text(task.settings.image)}
    numNodes: {task.hosts}
    numProcPerNode: {task.processes_here}
    resourcesPerNode: {resources(task)}
    command: [bash, -c]
    args:
    - |
{yaml_block(script, indent=6)}
"""
