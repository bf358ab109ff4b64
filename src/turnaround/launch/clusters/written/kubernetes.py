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


def kubernetes_file(training: TrainingJob, wishes: Wishes) -> str:
    """Return the manifest; `kubectl apply -f` takes it as it is. Pure."""
    task = HostTask.of(training, wishes, title=TITLE)
    settings = task.settings
    if not settings.image:
        raise InputError("--on kubernetes needs an image with turnaround in it: --job image=REGISTRY/NAME:TAG.")
    if settings.spot == "yes" or settings.cloud:
        raise InputError(
            "--job spot and cloud are for SkyPilot; in Kubernetes the cluster's nodes decide. Leave them out."
        )
    first = f'"${{TURNAROUND_FIRST_HOST:-{task.name}-0.{task.name}}}"'
    script = host_script(task, rank='"$JOB_COMPLETION_INDEX"', first_host=first)
    script = f"{settings.setup}\n{script}" if settings.setup else script
    volume = (
        f"persistentVolumeClaim: {{claimName: {yaml_text(settings.volume)}}}" if settings.volume else "emptyDir: {}"
    )
    if not settings.volume and task.hosts > 1:
        raise InputError("Several hosts need a volume that all of them mount: --job volume=CLAIM (ReadWriteMany).")
    return _service(task) + _indexed_job(task, script, volume)


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


def _indexed_job(task: HostTask, script: str, volume: str) -> str:
    settings = task.settings
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
  backoffLimit: {int(settings.max_restarts) * task.hosts}
  podFailurePolicy:
    rules:
    - action: FailJob # bad input, or a run that has diverged: again would be the same
      onExitCodes: {{containerName: train, operator: In, values: [{REFUSED}, {DIVERGED}]}}
    - action: Ignore # saved, to go on: not counted
      onExitCodes: {{containerName: train, operator: In, values: [{RESUMABLE}]}}
    - action: Ignore # evicted, pre-empted, drained
      onPodConditions:
      - {{type: DisruptionTarget, status: "True"}}
  template:
    spec:
      subdomain: {task.name}
      restartPolicy: Never
      terminationGracePeriodSeconds: {GRACE_S}
      containers:
      - name: train
        image: {yaml_text(settings.image)}
{_resources(task)}        volumeMounts:
        - {{name: shared, mountPath: {yaml_text(settings.shared)}}}
        - {{name: memory, mountPath: /dev/shm}}
        command: [bash, -c]
        args:
        - |
{yaml_block(script, indent=10)}
      volumes:
      - name: shared
        {volume}
      - name: memory # processes of one host share decoded images
        emptyDir: {{medium: Memory}}
{_node_selector(task)}"""


def _resources(task: HostTask) -> str:
    settings = task.settings
    amounts = {
        "nvidia.com/gpu": str(task.processes_here) if task.has_gpus else "",
        "cpu": settings.cpus,
        "memory": f"{settings.memory_gb}Gi" if settings.memory_gb else "",
    }
    known = ", ".join(f"{name}: {yaml_text(amount)}" for name, amount in amounts.items() if amount)
    return f"        resources:\n          limits: {{{known}}}\n" if known else ""


def _node_selector(task: HostTask) -> str:
    """Return the nodes with this kind of GPU, by the label of NVIDIA's own feature discovery; "any" asks for none."""
    if task.gpu is None or task.gpu.casefold() == "any":
        return ""
    return f"      nodeSelector: {{nvidia.com/gpu.product: {yaml_text(task.gpu)}}}\n"
