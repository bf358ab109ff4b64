"""Directories that are whole or invisible, whatever happens: locks, leftovers of killed processes, one rename.

PARENT/NAME                      an entry
PARENT/NAME.lock                 held by the one process that builds; the others wait, then reuse
PARENT/building-<host>-<pid>-*   unfinished; becomes the entry by one rename, or is removed
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: several processes may then build the same entry, and one rename wins
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def locked(entry: Path) -> Iterator[None]:
    """One process at a time. Where there are no file locks several may build: the rename lets one win."""
    path = entry.with_name(entry.name + ".lock")
    descriptor = _lock(path)
    try:
        yield
    finally:
        if descriptor is not None:
            with contextlib.suppress(OSError):
                path.unlink()  # still locked: whoever waits sees that the file has gone, and starts over
            os.close(descriptor)


def _lock(path: Path) -> int | None:
    while fcntl is not None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, FileNotFoundError):
                continue  # removed by its last holder: take a new one
            if isinstance(error, OSError):
                return None  # some network file systems have no locks
            raise
        os.close(descriptor)
    return None


@contextlib.contextmanager
def building(parent: Path) -> Iterator[Path]:
    """A directory to build in; what was not published from it goes."""
    place = parent / f"{building_prefix()}{os.getpid()}-{secrets.token_hex(8)}"
    try:
        place.mkdir()
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)  # after the rename there is nothing left to remove


def building_prefix() -> str:
    return f"building-{socket.gethostname().replace(os.sep, '_')}-"


def remove_leftovers(parent: Path) -> None:
    """Remove what killed processes of this host left; other hosts' processes cannot be asked from here."""
    for path in parent.glob("building-*") if fcntl is not None else ():  # os.kill(pid, 0) kills on Windows
        pid, _, rest = path.name.removeprefix(building_prefix()).partition("-")
        if path.name.startswith(building_prefix()) and pid.isdecimal() and rest.isalnum():
            try:
                os.kill(int(pid), 0)
            except ProcessLookupError:
                shutil.rmtree(path, ignore_errors=True)
            except (PermissionError, OverflowError):
                pass  # another user's and alive, or no pid at all


def publish(place: Path, entry: Path, *, is_whole: Callable[[Path], bool]) -> None:
    """On the disk first, then under its name: a power cut leaves a whole entry or none."""
    for path in (*place.iterdir(), place):
        _fsync(path)
    try:
        place.rename(entry)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if is_whole(entry):
            return  # built meanwhile by a process that does not see our lock, with the same content
        shutil.rmtree(entry)  # damaged
        place.rename(entry)
    _fsync(entry.parent)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
