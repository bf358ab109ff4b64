"""Atomic publication of cache entries: directories that are whole or invisible, by locks and one rename.

PARENT/NAME                      an entry
PARENT/NAME.lock                 held by the one process that builds; the others wait, then reuse
PARENT/building-<host>-<pid>-*   unfinished; becomes the entry by one rename, or is removed
PARENT/.NAME.<host>-<pid>-*.unfinished   the same of a set that is drawn or fetched, and of a file
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from turnaround.children import process_tag

try:
    import fcntl
except ImportError:  # Windows: several processes may then build the same entry, and one rename wins
    fcntl = None  # type: ignore[assignment]

_OLD_NAMES = re.compile(r"\.(?:fruitbowl-|caltech256\.).*\.unfinished")  # of versions that did not name their process
_OLD_AGE_S = 86_400.0  # no set takes a day to draw or to fetch


@contextlib.contextmanager
def locked(entry: Path) -> Iterator[None]:
    """Let one process build at a time. Where there are no file locks several may: the rename lets one win."""
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
        try:
            # A link in its place is nobody's lock, and following it could make a file anywhere.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        except OSError as error:
            if error.errno == errno.ELOOP:
                return None
            raise
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # The last holder removes the file: a lock on a file that has no name any more excludes nobody.
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
    """Yield a directory to build in; what was not published from it is removed."""
    place = parent / f"building-{process_tag()}"
    try:
        place.mkdir()
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)  # after the rename there is nothing left to remove


def remove_leftovers(parent: Path) -> None:
    """Remove what killed processes of this host left; other hosts' processes cannot be asked from here."""
    host = re.escape(socket.gethostname().replace(os.sep, "_"))
    ours = re.compile(rf"(?:building-|\..+\.){host}-(\d+)-[0-9a-f]+(?:\.unfinished)?")
    # os.kill(pid, 0) kills on Windows.
    for path in (*parent.glob("building-*"), *parent.glob(".*.unfinished")) if fcntl is not None else ():
        owner = ours.fullmatch(path.name)
        if (owner is not None and not _is_alive(int(owner[1]))) or (
            owner is None and _OLD_NAMES.fullmatch(path.name) and _age_s(path) > _OLD_AGE_S
        ):
            _remove(path)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass  # another user's and alive, or no pid at all
    return True


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.lstat().st_mtime
    except OSError:  # removed meanwhile
        return 0.0


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def publish(place: Path, entry: Path, *, is_whole: Callable[[Path], bool]) -> None:
    """Sync the content to the disk, then rename: a power cut leaves a whole entry or none."""
    # The order matters: the files, their directory, and after the rename the parent, which holds the new name.
    for path in (*place.iterdir(), place):
        _fsync(path)
    try:
        place.rename(entry)
    except OSError as error:
        # An entry is there already; POSIX leaves it to the system which of the two it says. Of what is no folder, a
        # link or a file, it says the third.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        if is_whole(entry):
            return  # built meanwhile by a process that does not see our lock, with the same content
        _remove(entry)  # damaged
        place.rename(entry)
    _fsync(entry.parent)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
