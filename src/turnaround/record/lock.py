"""One live run in a directory at a time. Enters: the lock file's path. Leaves: the lock, or who holds it.

The file says who the owner is. Another process takes it over only when the owner is provably dead: the same
host has been started anew, or its process is gone, or the process number now belongs to another process. Age
alone proves nothing, and neither does silence from another host.
"""

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shlex
import socket
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from turnaround.errors import RunDirectoryError
from turnaround.record.files import (
    claim,
    folder_of,
    open_for_appending,
    open_for_reading,
    read_bytes,
    remove_file,
    storage_error,
    write_all,
    write_temporary,
)
from turnaround.record.schema import FORMAT_VERSION, utc_now

# Each attempt fails only because the lock changed hands between two calls: so many in a row are no accident.
MAX_ATTEMPTS = 100
MAX_LOCK_BYTES = 10_000
_held: set[str] = set()
"""The tokens of the locks that this process holds."""


class RunLock:
    """A context manager that holds a run's lock file; RunDirectoryError when a live run has it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._token: str | None = None

    def acquire(self) -> None:
        """Take the lock, or the lock of a dead owner."""
        owner = _identity()
        content = json.dumps(owner).encode() + b"\n"
        try:
            self._take(content)
        except OSError as error:
            raise storage_error("lock", self.path, error) from error
        self._token = owner["token"]
        _held.add(owner["token"])

    def release(self) -> None:
        """Give the lock back; somebody else's lock stays."""
        token, self._token = self._token, None
        _held.discard(token or "")
        # The folder may be gone or read-only by now: then there is nothing left to give back.
        with contextlib.suppress(OSError):
            # After a takeover the file has another token: removing it would let a third run in beside its owner.
            if token is not None and _parse(_read(self.path)).get("token") == token:
                remove_file(self.path)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _take(self, content: bytes) -> None:
        for _ in range(MAX_ATTEMPTS):
            # Content first, name second: whoever sees a lock file can read who its owner is.
            temporary = write_temporary(self.path, content)
            try:
                if _create_whole(temporary, self.path):
                    return
                descriptor = open_for_reading(self.path)
                try:
                    if self._take_over(descriptor, temporary):
                        return
                finally:
                    os.close(descriptor)
            except FileNotFoundError:
                # The lock was released between two calls, or its owner has removed our temporary file with all that
                # writers had left (`writer.remove_leftovers`). Where the folder is gone, the next one says so.
                continue
            finally:
                remove_file(temporary)
        raise RunDirectoryError(f"{self.path} changes hands too quickly: other runs are starting here. Try again.")

    def _take_over(self, descriptor: int, temporary: Path) -> bool:
        """Replace a dead owner's lock; False when it changed meanwhile and must be looked at again."""
        # Of several that find the same dead owner one gets this lock; the others then see another inode.
        with contextlib.suppress(OSError):  # file systems without flock: the inode check below remains
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        with folder_of(self.path) as (folder, name):
            try:
                if os.stat(name, dir_fd=folder, follow_symlinks=False).st_ino != os.fstat(descriptor).st_ino:
                    return False
            except FileNotFoundError:
                return False
            # Read and replaced while we hold the flock: the owner that is judged is the one that is replaced.
            owner = _parse(os.pread(descriptor, MAX_LOCK_BYTES, 0))
            refusal = _refusal(self.path, owner)
            if refusal:
                raise RunDirectoryError(refusal)
            os.replace(temporary.name, name, src_dir_fd=folder, dst_dir_fd=folder)
        return True


def is_held(path: Path) -> bool:
    """Return whether somebody may still be writing here: False only when nobody holds the lock, or a dead process.

    A link or a device in its place is nobody's lock; `RunLock.acquire` refuses it.
    """
    try:
        return _refusal(path, _parse(_read(path))) is not None
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EINVAL):
            return False
        raise


def _create_whole(temporary: Path, path: Path) -> bool:
    """Give the file its name unless that is taken: with its content, in one atomic step, also over NFS."""
    try:
        with folder_of(path) as (folder, name):
            os.link(temporary.name, name, src_dir_fd=folder, dst_dir_fd=folder)
    except FileExistsError:
        return False
    except OSError as error:
        # What file systems without hard links answer (FAT, some network shares).
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        return _create_exclusive(path, read_bytes(temporary))
    return True


def _create_exclusive(path: Path, content: bytes) -> bool:
    """Create the file, then fill it, on file systems without hard links; who sees it empty refuses to start."""
    if not claim(path):
        return False
    descriptor = open_for_appending(path)
    try:
        write_all(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return True


def _read(path: Path) -> bytes:
    descriptor = open_for_reading(path)
    try:
        return os.read(descriptor, MAX_LOCK_BYTES)
    finally:
        os.close(descriptor)


def _parse(content: bytes) -> dict[str, Any]:
    try:
        owner = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _identity() -> dict[str, Any]:
    return {
        "format": FORMAT_VERSION,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "process_start": _process_start(os.getpid()),
        "boot_id": _boot_id(),
        "pid_namespace": _pid_namespace(),
        "started_at": utc_now(),
        "token": secrets.token_hex(16),
    }


def _refusal(path: Path, owner: dict[str, Any]) -> str | None:
    """Return why the lock must not be taken over; None when its owner is provably dead."""
    by_hand = f"If it no longer runs, remove the file by hand: rm {shlex.quote(str(path))}"
    host, pid = owner.get("host"), owner.get("pid")
    if not isinstance(host, str) or not isinstance(pid, int) or not 0 < pid < 2**31:
        return f"{path} is held by a run, but does not say which. {by_hand}"
    since = owner.get("started_at")
    who = f"{path.parent} is in use by another run: host {host}, process {pid}, started {since}."
    if host != socket.gethostname():
        return f"{who} This host ({socket.gethostname()}) cannot ask whether it still runs. {by_hand}"
    # Before any question about processes: a reboot has ended all of them, in every container.
    if owner.get("boot_id") and _boot_id() and owner["boot_id"] != _boot_id():
        return None
    if owner.get("pid_namespace") != _pid_namespace():
        return f"{who} It runs in another container, which cannot be asked from here. {by_hand}"
    if not psutil.pid_exists(pid):
        return None
    # Process numbers are used again: the same number with another start time is another process.
    start = _process_start(pid)
    if start is not None and owner.get("process_start") is not None and start != owner["process_start"]:
        return None
    if _is_zombie(pid):
        return None
    if pid == os.getpid() and owner.get("token") not in _held:  # ours, from a folder that was away when we gave it back
        return None
    return f"{who} Wait for it, stop it (kill {pid}), or choose another directory with --out."


def _process_start(pid: int) -> float | None:
    """Return the start time of a process in ticks since boot: unlike a date, it survives a change of the clock."""
    try:
        # After the command in brackets, which may hold anything: state is field 3, the start field 22.
        return float(Path(f"/proc/{pid}/stat").read_bytes().rsplit(b")", 1)[1].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def _is_zombie(pid: int) -> bool:
    """Return whether the process is a zombie, killed and not yet reaped by its parent: it writes no more."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _boot_id() -> str:
    """Return an id that changes with every boot of the host; empty where there is none to read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


def _pid_namespace() -> str:
    """Return the id of our PID namespace: process numbers of another container mean other processes."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
