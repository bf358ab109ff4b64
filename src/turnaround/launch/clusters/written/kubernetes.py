"""Kubernetes: a headless Service, so that pods find the first one by name, and an Indexed Job with a pod for each host.

What starts again: a pod that was evicted, or that saved and ended with 75, whenever there is room, uncounted; any other
failure up to `max_restarts` times for each host. Bad input (2) and a diverged run (3) end the job at once.
"""

from __future__ import annotations

from turnaround.errors import InputError
from turnaround.launch.clusters.contract import TrainingJob, Wishes
from turnaround.launch.clusters.written.task import (
    DIVERGED,
    GRACE_S,
    PORT,
    REFUSED,
    RESUMABLE,
    HostTask,
    host_script,
    yaml_block,
    yaml_text,
)

TITLE = "Kubernetes"
CONTAINER = "train"


def kubernetes_file(training: TrainingJob, wishes: Wishes) -> str:
    """Return the manifest; `kubectl apply -f` takes it as it is. Pure."""
    task = pod_task(training, wishes, title=TITLE)
    first = f'"${{TURNAROUND_FIRST_HOST:-{task.name}-0.{task.name}}}"'
    script = pod_script(task, rank='"$JOB_COMPLETION_INDEX"', first_host=first)
    return _service(task) + _indexed_job(task, script)


def pod_task(training: TrainingJob, wishes: Wishes, *, title: str) -> HostTask:
    """Return the task of a training whose hosts are pods; InputError for what a pod cannot be told."""
    task = HostTask.of(training, wishes, title=title)
    settings = task.settings
    if not settings.image:
        raise InputError(
            f"--on {title.casefold()} needs an image with turnaround in it: --job image=REGISTRY/NAME:TAG."
        )
    if settings.spot == "yes" or settings.cloud:
        raise InputError(
            f"--job spot and cloud are for SkyPilot; in {title} the cluster's nodes decide. Leave them out."
        )
    if not settings.volume and task.hosts > 1:
        raise InputError("Several hosts need a volume that all of them mount: --job volume=CLAIM (ReadWriteMany).")
    return task


def pod_script(task: HostTask, *, rank: str, first_host: str) -> str:
    """Return what the container of each pod runs."""
    script = host_script(task, rank=rank, first_host=first_host)
    return f"{task.settings.setup}\n{script}" if task.settings.setup else script


def _service(task: HostTask) -> str:
    return f"""\
# {task.name}: {task.hosts} x {task.processes_here} processes.
# Submit: kubectl apply -f FILE. Watch: kubectl logs -f job/{task.name}
# Written by turnaround and never run on a real cluster by its authors: read it before you trust it.
apiVersion: v1
kind: Service
metadata:
  name: {task.name}
spec:
  clusterIP: None
  publishNotReadyAddresses: true # the pods meet before any of them is ready
  selector: {{batch.kubernetes.io/job-name: {task.name}}}
  ports:
  - {{name: meeting, port: {PORT}}}
"""


def _indexed_job(task: HostTask, script: str) -> str:
    # restartPolicy Never: a podFailurePolicy is allowed with no other. The subdomain is the Service's name, which gives
    # each pod a name in DNS, by which the others find the first.
    return f"""\
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {task.name}
spec:
  completionMode: Indexed
  completions: {task.hosts}
  parallelism: {task.hosts}
{yaml_block(failure_rules(task, container=CONTAINER), indent=2)}
  template:
    spec:
      subdomain: {task.name}
      restartPolicy: Never
      terminationGracePeriodSeconds: {GRACE_S}
      containers:
      - name: {CONTAINER}
        image: {yaml_text(task.settings.image)}
        resources: {resources(task)}
{yaml_block(mounts(task), indent=8)}
        command: [bash, -c]
        args:
        - |
{yaml_block(script, indent=10)}
{yaml_block(volumes(task), indent=6)}
"""


def failure_rules(task: HostTask, *, container: str) -> str:
    """Return which pod of a Job starts again, and how often."""
    # The first rule that fits counts: a run that has diverged on a node that is drained ends all the same. The limit
    # is for all pods together, and one that fails takes the others of its training with it.
    return f"""\
backoffLimit: {int(task.settings.max_restarts) * task.hosts}
podFailurePolicy:
  rules:
  - action: FailJob # bad input, or a run that has diverged: again would be the same
    onExitCodes: {{containerName: {container}, operator: In, values: [{REFUSED}, {DIVERGED}]}}
  - action: Ignore # saved, to go on: not counted
    onExitCodes: {{containerName: {container}, operator: In, values: [{RESUMABLE}]}}
  - action: Ignore # evicted, pre-empted, drained
    onPodConditions:
    - {{type: DisruptionTarget, status: "True"}}
"""


def mounts(task: HostTask) -> str:
    return f"""\
volumeMounts:
- {{name: shared, mountPath: {yaml_text(task.settings.shared)}}}
- {{name: memory, mountPath: /dev/shm}}
"""


def volumes(task: HostTask) -> str:
    """Return the volumes of a pod, and the nodes with its kind of GPU by the label of NVIDIA's own feature discovery;
    "any" asks for none."""
    # Container runtimes give /dev/shm 64 MB: too little for the images that processes share.
    claim = task.settings.volume
    shared = f"persistentVolumeClaim: {{claimName: {yaml_text(claim)}}}" if claim else "emptyDir: {}"
    is_any = task.gpu is None or task.gpu.casefold() == "any"
    nodes = "" if is_any else f"nodeSelector: {{nvidia.com/gpu.product: {yaml_text(task.gpu)}}}\n"
    return f"""\
volumes:
- name: shared
  {shared}
- name: memory # processes of one host share decoded images
  emptyDir: {{medium: Memory}}
{nodes}"""


def resources(task: HostTask) -> str:
    """Return what a host needs, in YAML's flow style."""
    settings = task.settings
    amounts = {
        "nvidia.com/gpu": str(task.processes_here) if task.has_gpus else "",
        "cpu": settings.cpus,
        "memory": f"{settings.memory_gb}Gi" if settings.memory_gb else "",
    }
    # Limits alone: requests are the same where none are given, and GPUs may not have others.
    known = ", ".join(f"{name}: {yaml_text(amount)}" for name, amount in amounts.items() if amount)
    return f"{{limits: {{{known}}}}}" if known else "{}"
