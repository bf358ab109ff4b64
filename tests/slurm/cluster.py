"""A real Slurm on one machine: munge, a controller and four nodes, each with a network, a name and a disk of its own.

Enters: nothing but root and the packages (`bash .ci/slurm` installs them). Leaves: a folder of commands for PATH that
speak to this cluster, and, when it is stopped, nothing: no process, no network, no folder.

    n1, n2   two fake t4 each      partition gpu (default): pre-empts scavenge
    n3, n4   two fake v100 each    partition scavenge: its jobs go back to the queue

The nodes share this machine's disks, as nodes of a cluster share theirs, except the folder `node_local`.

    python tests/slurm/cluster.py COMMAND...     runs COMMAND with a cluster around it, e.g. bash
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

NODES = {"n1": "t4", "n2": "t4", "n3": "v100", "n4": "v100"}
GPUS_PER_NODE, CPUS_PER_NODE, MEMORY_MB = 2, 4, 8000
REQUEUE_WAIT_S = 5
"""Slurm lets a requeued job rest for as long as its credentials live: 120 s unless told otherwise."""
CLIENTS = ("sbatch", "squeue", "scontrol", "sacct", "scancel", "sinfo", "srun")
DAEMONS = ("munged", "slurmctld", "slurmd")
SUBNET = "10.99.0"  # only inside the namespaces
CONTROLLER = "ctl"

SLURM_CONF = """\
ClusterName=turnaround-tests
SlurmctldHost={controller}({subnet}.1)
SlurmctldPort=16817
SlurmdPort=16818
SlurmUser=root
SlurmdUser=root
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthInfo=socket={root}/munge/socket,cred_expire={requeue_wait_s}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmdPidFile={root}/run/slurmd-%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd-%n.log

# None of these needs cgroups; nodes may claim more than this machine has.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=256
GresTypes=gpu
MpiDefault=none
ReturnToService=1

# Tests do not want to wait, and want to see what has ended.
SchedulerParameters=sched_interval=2,bf_interval=2
KillWait=5
MinJobAge=86400

PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
PartitionName=gpu Nodes=ALL Default=YES MaxTime=60 PriorityTier=10 PreemptMode=OFF
PartitionName=scavenge Nodes=ALL MaxTime=2-00:00:00 PriorityTier=1 PreemptMode=REQUEUE GraceTime=10
"""


def missing() -> str | None:
    """Why no cluster can be started here; None when one can."""
    programs = [name for name in (*DAEMONS, "sbatch", "ip", "nsenter") if _which(name) is None]
    if programs:
        return f"not installed: {', '.join(programs)}; `bash .ci/slurm` installs them and runs this"
    return None if os.geteuid() == 0 else "needs root, for a network of each node's own"


@dataclass
class Cluster:
    """Started by `with`, stopped at its end."""

    root: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="ta-slurm-")))  # sockets: short paths
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def commands(self) -> Path:
        """To be put first in PATH: Slurm's commands as on this cluster's login node."""
        return self.root / "bin"

    @property
    def node_local(self) -> Path:
        """A folder that exists here and on every node, and is another one on each."""
        return self.root / "local"

    def __enter__(self) -> Cluster:
        try:
            self._write_configuration()
            self._make_networks()
            self._start_daemons()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def run(self, *command: str, timeout_s: float = 90) -> str:
        """The output of one of Slurm's commands."""
        arguments = [str(self.commands / command[0]), *command[1:]]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=timeout_s, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def on(self, host: str, *command: str) -> list[str]:
        """A command as that host would run it: its network, its name, its /etc/hosts, its own disk."""
        dress = 'mount --bind "$1/hosts" /etc/hosts && mount -t tmpfs tmpfs "$1/local" && hostname "$2" && shift 2'
        room = ["nsenter", f"--net=/run/netns/{self._network(host)}", "unshare", "--mount", "--uts"]
        room += ["--propagation", "private", "sh", "-c", f'{dress} && exec "$@"', "sh", str(self.root), host]
        return [*room, *command]

    def log(self, name: str = "slurmctld", lines: int = 40) -> str:
        """The end of a daemon's log, for the message of a failed test."""
        path = self.root / "log" / f"{name}.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else "(no log)"

    def cancel_all(self) -> None:
        """Leaves the cluster as it was started: no jobs, all nodes up."""
        jobs = self.run("squeue", "-h", "-o", "%A").split()
        if jobs:
            self.run("scancel", *sorted(set(jobs)))
        _wait_for(lambda: not self.run("squeue", "-h"), "the jobs to end", 120)
        for node in NODES:
            if self._state(node).startswith(("down", "drain")):
                self.run("scontrol", "update", f"nodename={node}", "state=resume")
        _wait_for(lambda: all(self._state(node) == "idle" for node in NODES), "the nodes to come back", 120)

    @contextlib.contextmanager
    def configured_without(self, line: str) -> Iterator[None]:
        """Inside it the cluster runs without a line of its configuration."""
        file = self.root / "slurm.conf"
        text = file.read_text()
        assert line in text
        try:
            file.write_text(text.replace(line, ""))
            self.run("scontrol", "reconfigure")
            yield
        finally:
            file.write_text(text)
            self.run("scontrol", "reconfigure")

    def stop(self) -> None:
        """Ends the jobs, then every process that was started here or lives in one of our networks, by its number."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired, FileNotFoundError):
            if jobs := self.run("squeue", "-h", "-o", "%A", timeout_s=5).split():
                self.run("scancel", *sorted(set(jobs)), timeout_s=5)
                _wait_for(lambda: not self.run("squeue", "-h", timeout_s=5), "the jobs to end", 15)
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in reversed(self.daemons):
            try:
                daemon.wait(timeout=10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for pid in self._inhabitants():  # slurmstepd outlives slurmd
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for host in (*NODES, CONTROLLER):
            if (Path("/run/netns") / self._network(host)).exists():
                _ip("netns", "del", self._network(host))
        shutil.rmtree(self.root, ignore_errors=True)

    def _network(self, host: str) -> str:
        return f"{self.root.name}-{host}"

    def _state(self, node: str) -> str:
        # not sinfo, which may go on saying "mixed" of an idle node until something else changes
        shown = self.run("scontrol", "show", "node", "-o", node)
        return shown.partition(" State=")[2].partition(" ")[0].lower()

    def _write_configuration(self) -> None:
        self.root.chmod(0o755)
        for name in ("run", "log", "state", "dev", "munge", "bin", "local", *(f"spool/{node}" for node in NODES)):
            (self.root / name).mkdir(parents=True)
        text = SLURM_CONF.format(root=self.root, controller=CONTROLLER, subnet=SUBNET, requeue_wait_s=REQUEUE_WAIT_S)
        devices = "AutoDetect=off\n"
        # torch's c10d looks up the names of its peers' IPv4 addresses written as IPv6: hence the second line of each
        hosts = f"127.0.0.1 localhost\n{SUBNET}.1 {CONTROLLER}\n::ffff:{SUBNET}.1 {CONTROLLER}\n"
        for number, (node, kind) in enumerate(NODES.items()):
            address = f"{SUBNET}.{number + 11}"
            text += f"NodeName={node} NodeHostname={node} NodeAddr={address} CPUs={CPUS_PER_NODE} "
            text += f"RealMemory={MEMORY_MB} Gres=gpu:{kind}:{GPUS_PER_NODE}\n"
            # a GPU is a character device whose name ends in its number
            devices += f"NodeName={node} Name=gpu Type={kind} File={self.root}/dev/{node}-gpu[0-{GPUS_PER_NODE - 1}]\n"
            hosts += f"{address} {node}\n::ffff:{address} {node}\n"
            for gpu in range(GPUS_PER_NODE):
                (self.root / "dev" / f"{node}-gpu{gpu}").symlink_to("/dev/null")
        (self.root / "slurm.conf").write_text(text)
        (self.root / "gres.conf").write_text(devices)
        (self.root / "hosts").write_text(hosts)
        key = self.root / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        for name in CLIENTS:
            command = self.commands / name
            network = f"nsenter --net=/run/netns/{self._network(CONTROLLER)}"
            # a job inherits this PATH, but its node has a network of its own
            lines = ["#!/bin/sh", f"export SLURM_CONF={self.root}/slurm.conf", f'real="{_which(name)}"']
            lines += [f'if [ -z "$SLURM_JOB_ID" ]; then exec {network} "$real" "$@"; fi', 'exec "$real" "$@"', ""]
            command.write_text("\n".join(lines))
            command.chmod(0o755)

    def _make_networks(self) -> None:
        """A bridge in the controller's namespace, and a cable from it to each node's."""
        controller = self._network(CONTROLLER)
        _ip("netns", "add", controller)
        _ip("-n", controller, "link", "set", "lo", "up")
        _ip("-n", controller, "link", "add", "br0", "type", "bridge")
        _ip("-n", controller, "addr", "add", f"{SUBNET}.1/24", "dev", "br0")
        _ip("-n", controller, "link", "set", "br0", "up")
        for number, node in enumerate(NODES):
            network = self._network(node)
            _ip("netns", "add", network)
            _ip("-n", network, "link", "set", "lo", "up")
            _ip(*f"-n {network} link add eth0 type veth peer name v-{node} netns {controller}".split())
            _ip("-n", network, "addr", "add", f"{SUBNET}.{number + 11}/24", "dev", "eth0")
            _ip("-n", network, "link", "set", "eth0", "up")
            _ip("-n", controller, "link", "set", f"v-{node}", "master", "br0", "up")

    def _start_daemons(self) -> None:
        munge = self.root / "munge"
        files = [f"--key-file={munge}/key", f"--socket={munge}/socket", f"--seed-file={munge}/seed"]
        files += [f"--pid-file={self.root}/run/munged.pid", f"--log-file={self.root}/log/munged.log"]
        self._start("munged", "--foreground", "--force", *files)  # --force: whoever owns the folders above
        _wait_for(lambda: (munge / "socket").exists(), "munge", 90)
        self._start("slurmctld", "-D", host=CONTROLLER)
        for node in NODES:
            self._start("slurmd", "-D", "-N", node, host=node)
        _wait_for(self._all_idle, "the nodes", 180)

    def _all_idle(self) -> bool:
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            return all(self._state(node) == "idle" for node in NODES)
        return False

    def _start(self, name: str, *arguments: str, host: str | None = None) -> None:
        """A daemon in the foreground, here or on a host."""
        command = [_which(name) or name, *arguments]
        command = command if host is None else self.on(host, *command)
        environment = {**os.environ, "SLURM_CONF": f"{self.root}/slurm.conf"}
        with (self.root / "log" / f"{name}-{host}.out").open("wb") as out:
            daemon = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        self.daemons.append(daemon)

    def _inhabitants(self) -> Iterator[int]:
        """The processes in our networks: whatever our daemons have started, and nothing else."""
        ours = set()
        for host in (*NODES, CONTROLLER):
            with contextlib.suppress(OSError):
                ours.add((Path("/run/netns") / self._network(host)).stat().st_ino)
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (process / "ns" / "net").stat().st_ino in ours:
                    yield int(process.name)


def _which(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))


def _ip(*arguments: str) -> None:
    subprocess.run([_which("ip") or "ip", *arguments], check=True, capture_output=True, timeout=90)


def _wait_for(condition: Callable[[], bool], what: str, timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.1)


if __name__ == "__main__":
    if problem := missing():
        sys.exit(problem)
    with Cluster() as running:
        path = f"{running.commands}{os.pathsep}{os.environ['PATH']}"
        sys.exit(subprocess.run(sys.argv[1:] or ["bash"], env={**os.environ, "PATH": path}, check=False).returncode)
