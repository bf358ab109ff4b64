"""The files of a run directory, opened safely. Enters: a path. Leaves: bytes or objects, or an error with the path.

A run may come from somebody else, and its files may be torn, damaged, hostile or from a newer turnaround. So this is
the only place that opens, lists, replaces or removes anything in a run, for reading and for writing alike:

- no symbolic link is followed at any component below the run directory, which itself may be one. Every function takes
  `below`, the run directory of a file that lies deeper (logs/, checkpoint/); without it the file lies in it directly;
- only regular files are opened: a FIFO would wait for ever, a device may have no end;
- nothing is read without a limit on its size.

A network file system may fail for a moment (ESTALE, EIO). What can be done again is (patience.py); what fails for
longer is a PassingStorageError, with which a training goes on as with a full disk.
"""

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import Any, Literal

from turnaround import patience
from turnaround.errors import DiskFullError, PassingStorageError, RunDirectoryError, StorageError
from turnaround.patience import PASSING, patiently
from turnaround.record.coding import CRC, check_format, parse_object
from turnaround.words import GIB

MAX_FILE_BYTES = 256 * 2**20  # a confusion matrix of 10,000 classes; larger is not ours
MAX_TENSORS_BYTES = 64 * GIB  # the largest network of timm has 26 GB in float32; a sparse file may claim any size

trouble_on_purpose: list[Callable[[], None]] = []
"""Called before every access; training/faults.py puts a function here that raises."""

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# NOFOLLOW refuses a link in place of the file; NONBLOCK lets the open of a FIFO return, so that fstat can refuse it.
_PLAIN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


# --- folders


@contextlib.contextmanager
def folder_below(root: Path, parts: Sequence[str]) -> Iterator[int]:
    """Yield a descriptor of root/part/part; OSError where a part is not there, or is a link."""
    for trouble in trouble_on_purpose:
        trouble()
    descriptor = os.open(root, FOLDER)
    try:
        # One part at a time: O_NOFOLLOW speaks of the last component alone, and a link may be any of them. The root is
        # opened without it: the user may have put a link there.
        for part in parts:
            try:
                deeper = os.open(part, FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
            except NotADirectoryError as error:  # what Linux says of a link, too
                raise _link_or(error, part, descriptor) from error
            os.close(descriptor)
            descriptor = deeper
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def folder_of(path: Path, below: Path | None = None) -> Iterator[tuple[int, str]]:
    """Yield a descriptor of the file's folder, and the file's name in it.

    Everything that follows goes through the descriptor: whoever swaps a folder for a link meanwhile changes nothing.
    """
    *folders, name = path.relative_to(path.parent if below is None else below).parts
    with folder_below(path.parent if below is None else below, folders) as descriptor:
        yield descriptor, name


def _link_or(error: OSError, name: str, folder: int) -> OSError:
    """Return the error, or a plainer one where its reason is a link."""
    with contextlib.suppress(OSError):
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            return OSError(errno.ELOOP, f"{name} is a symbolic link; put the file itself there")
    return error


def names_in(folder: Path, below: Path | None = None, *, must_answer: bool = False) -> list[str]:
    """Return what lies in the folder, sorted; nothing when it cannot be read, or is reached through a link.

    With `must_answer` a file system that does not answer is an error: no answer is not "nothing".
    """
    root = folder if below is None else below

    def listed() -> list[str]:
        with folder_below(root, folder.relative_to(root).parts) as descriptor:
            return sorted(os.listdir(descriptor))

    try:
        return patiently(listed)
    except ValueError:  # a NUL in a name, or a folder that is not below the run
        return []
    except OSError as error:
        if must_answer and error.errno in PASSING:
            raise storage_error("list", folder, error) from error
        return []


def make_folder(path: Path, below: Path | None = None) -> None:
    """Make one folder; one that is there already is fine, a link in its place is not."""
    patiently(lambda: _make_folder(path, below))


def _make_folder(path: Path, below: Path | None) -> None:
    with folder_of(path, below) as (folder, name):
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=folder)
        try:
            # mkdir also finds a link "there already": only opening it without following tells.
            os.close(os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=folder))
        except NotADirectoryError as error:
            raise _link_or(error, name, folder) from error


def remove_folder(path: Path, below: Path | None = None) -> None:
    """Remove a folder and what is in it, as far as that goes; a link in its place stays, and so does its target."""
    # By descriptor: rmtree then follows no link at any depth (shutil.rmtree.avoids_symlink_attacks).
    with contextlib.suppress(OSError), folder_of(path, below) as (folder, name):
        shutil.rmtree(name, ignore_errors=True, dir_fd=folder)


def _sync_folder(descriptor: int) -> None:
    """Make a rename in the folder last; some network file systems cannot, and need not."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        # These mean that the file system has no fsync for folders; EIO and ENOSPC are real losses.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise


# --- one file, for writing


def open_for_appending(path: Path, below: Path | None = None) -> int:
    """Return a descriptor of the file, which is made where there is none; OSError for what is not a plain file."""
    # RDWR: a writer of lines first reads back to the last newline (writer.Lines).
    return patiently(lambda: _open_at(path, below, os.O_RDWR | os.O_APPEND | os.O_CREAT))


def _open_at(path: Path, below: Path | None, flags: int) -> int:
    with folder_of(path, below) as (folder, name):
        return _open_plain(name, folder, flags)


def open_log(path: Path, below: Path | None = None) -> BufferedWriter:
    """Open a file for what processes print, behind what is there."""
    try:
        return os.fdopen(open_for_appending(path, below), "ab")
    except OSError as error:
        raise storage_error("open", path, error) from error


def open_in(folder: int, name: str) -> int:
    """Return a descriptor of a file in a folder that is open, for reading; OSError for what is not a plain file."""
    return _open_plain(name, folder, os.O_RDONLY)


def _open_plain(name: str, folder: int, flags: int) -> int:
    try:
        descriptor = os.open(name, flags | _PLAIN, 0o666, dir_fd=folder)
    except OSError as error:
        raise _link_or(error, name, folder) from error
    # Of what is open, not of the name: the file may have been swapped since.
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"{name} is not a plain file")
    return descriptor


def replace_file(path: Path, content: bytes, below: Path | None = None, *, is_synced: bool = True) -> None:
    """Write `content` under a temporary name beside `path`, sync, rename, sync the folder.

    The order matters: a rename that reached the disk before the content would leave an empty file after a crash, and
    without the last sync the rename itself may be lost. A link in the file's place is replaced, not followed. What is
    not synced is written anew in a second anyway, so nobody waits for it.
    """
    try:
        if is_synced:
            patiently(lambda: _replace_file(path, content, below, is_synced=True))
        else:
            _replace_file(path, content, below, is_synced=False)
    except OSError as error:
        raise storage_error("write", path, error) from error


def _replace_file(path: Path, content: bytes, below: Path | None, *, is_synced: bool) -> None:
    with folder_of(path, below) as (folder, name):
        temporary = _write_temporary(name, content, folder, is_synced=is_synced)
        try:
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            _unlink(temporary, folder)
            raise
        if is_synced:
            _sync_folder(folder)


def write_temporary(path: Path, content: bytes, below: Path | None = None) -> Path:
    """Return a synced file with `content` beside `path`; nothing is left behind when that fails."""
    with folder_of(path, below) as (folder, name):
        return path.with_name(_write_temporary(name, content, folder, is_synced=True))


def _write_temporary(name: str, content: bytes, folder: int, *, is_synced: bool) -> str:
    # In the same folder, since a rename is atomic only within one file system; the dot hides it from listings, and the
    # random part keeps two writers, and two hosts with equal process numbers, apart.
    temporary = f".{name}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o666, dir_fd=folder)
    try:
        try:
            write_all(descriptor, content)
            if is_synced:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:  # also an interrupt: the temporary file must go
        _unlink(temporary, folder)
        raise
    return temporary


def is_temporary(name: str) -> bool:
    """Return whether a file of this name was left by a writer that was killed."""
    # As _write_temporary makes them: .NAME.PID-RANDOM.tmp, four random bytes in hex.
    return re.fullmatch(r"\..+\.[0-9]+-[0-9a-f]{8}\.tmp", name) is not None


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of it: the system may take a part at a time."""
    for trouble in trouble_on_purpose:
        trouble()
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def claim(path: Path, below: Path | None = None) -> bool:
    """Make an empty file and return True, or return False where something of that name is there already."""
    with folder_of(path, below) as (folder, name):
        try:
            # O_EXCL is atomic, over NFS from version 3 on as well (open(2)): of two at once, one gets it.
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=folder))
        except FileExistsError:
            return False
    return True


def remove_file(path: Path, below: Path | None = None) -> None:
    """Remove a file, or the link in its place; one that is not there is fine."""
    try:
        with folder_of(path, below) as (folder, name):
            _unlink(name, folder)
    except FileNotFoundError:  # not even its folder
        return


def _unlink(name: str, folder: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def move(path: Path, target: Path, below: Path | None = None) -> None:
    """Rename a file or folder inside one run, and make that last."""
    patiently(lambda: _move(path, target, below))


def _move(path: Path, target: Path, below: Path | None) -> None:
    with folder_of(path, below) as (source, name), folder_of(target, below) as (folder, new_name):
        try:
            os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=folder)
        except FileNotFoundError:
            # A server that lost its answer, not the request, finds it done when it is asked again.
            if not _is_there(new_name, folder):
                raise
        _sync_folder(folder)


def _is_there(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def storage_error(action: str, path: Path, error: Exception) -> StorageError:
    """Return the message for a disk that refuses: what was tried, why it failed, what to do."""
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT):
        full = f"the disk or your quota is full ({_free_text(path)}). Free some space"
        return DiskFullError(f"Cannot {action} {path}: {full}.")
    if number in PASSING and isinstance(error, OSError):
        pauses_s = patience.PAUSES_S
        tries = f"{error.strerror}, {len(pauses_s) + 1} times within {sum(pauses_s):.1f} s"
        return PassingStorageError(f"Cannot {action} {path}: {tries}. Look at the disk or the network file system.")
    if number == errno.EROFS:
        reason = "the file system is read-only. Choose a writable directory with --out"
    elif number in (errno.EACCES, errno.EPERM):
        reason = "permission denied. Choose a writable directory with --out"
    elif number == errno.ENOENT:
        reason = "its folder is not there (any more). Restore it, or choose another with --out"
    elif number == errno.ELOOP and isinstance(error, OSError):
        reason = f"nothing in a run is written through links: {error.strerror}"
    else:
        text = error.strerror if isinstance(error, OSError) else str(error)
        reason = f"{text}. Choose another directory with --out"
    return StorageError(f"Cannot {action} {path}: {reason}.")


def _free_text(path: Path) -> str:
    try:
        return f"{shutil.disk_usage(path if path.is_dir() else path.parent).free / GIB:.2f} GiB free"
    except (OSError, ValueError):
        return "free space unknown"


# --- one file, for reading


def open_for_reading(path: Path, below: Path | None = None) -> int:
    """Return a descriptor of the file; OSError for what is not a plain file."""
    return patiently(lambda: _open_at(path, below, os.O_RDONLY))


def open_file(path: Path, below: Path | None = None) -> BufferedReader:
    """Open the file for reading; RunDirectoryError for whatever is not a plain file."""
    try:
        return os.fdopen(open_for_reading(path, below), "rb")
    except (OSError, ValueError) as error:
        raise refusal(str(path), error) from error


def refusal(label: str, error: Exception) -> RunDirectoryError:
    """Return why a file of a run is not read, in a sentence; `label` is how the reader calls it."""
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.ENOENT:
        return RunDirectoryError(f"{label} is missing: the run has not come that far, or it was removed.")
    # ELOOP: O_NOFOLLOW met a link, or _link_or has found one. EINVAL is _open_plain's word for what is no regular file.
    if number == errno.ELOOP:
        return RunDirectoryError(f"{label} is a symbolic link; put the file itself there.")
    if number == errno.EINVAL:
        return RunDirectoryError(f"{label} is not a plain file.")
    return RunDirectoryError(f"{label} cannot be read: {error}.")


def read_bytes(path: Path, below: Path | None = None) -> bytes:
    """Return the content of a whole file."""

    def read() -> bytes:
        with open_file(path, below) as file:
            # One byte more than allowed: the read itself is limited, whatever size the file has or grows to.
            return file.read(MAX_FILE_BYTES + 1)

    try:
        # Tried again after an error in the middle of the file; opening has tries of its own.
        content = patiently(read)
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be read: {error}.") from error
    if len(content) > MAX_FILE_BYTES:
        raise RunDirectoryError(f"{path} is larger than {MAX_FILE_BYTES // 2**20} MiB: not a file of a run.")
    return content


def sha256_of(path: Path, below: Path | None = None) -> str:
    """Return the SHA-256 of a file of tensors."""
    return patiently(lambda: _sha256_of(path, below))


def _sha256_of(path: Path, below: Path | None) -> str:
    with open_file(path, below) as file:
        if os.fstat(file.fileno()).st_size > MAX_TENSORS_BYTES:
            raise RunDirectoryError(f"{path} is larger than {MAX_TENSORS_BYTES // GIB} GiB: not a file of a run.")
        return hashlib.file_digest(file, "sha256").hexdigest()


def size_of(path: Path, below: Path | None = None) -> int:
    """Return the size of a plain file; 0 where there is none."""
    try:
        with folder_of(path, below) as (folder, name):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def kind_of(path: Path, below: Path | None = None) -> Literal["file", "folder", "link", "other"] | None:
    """Return what bears the name, without opening it; None for nothing."""
    try:
        with folder_of(path, below) as (folder, name):
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except (OSError, ValueError):
        return None
    if stat.S_ISREG(mode):
        return "file"
    return "link" if stat.S_ISLNK(mode) else "folder" if stat.S_ISDIR(mode) else "other"


def decode_file(content: bytes, label: str) -> dict[str, Any]:
    """Return the object in a whole file, without format version and checksum; RunDirectoryError with the label.

    The checksum is left to `turnaround verify`: people edit a recipe, and a resume then says which keys are others.
    """
    # Here too: whoever follows a run brings bytes that were read elsewhere (growing.py).
    if len(content) > MAX_FILE_BYTES:
        raise RunDirectoryError(f"{label} is larger than {MAX_FILE_BYTES // 2**20} MiB: not a file of a run.")
    try:
        payload = parse_object(content)
    except ValueError as error:
        raise RunDirectoryError(f"{label} is damaged: {error}.") from error
    try:
        check_format(payload)
    except RunDirectoryError as error:
        raise RunDirectoryError(f"{label}: {error}") from error
    return {key: value for key, value in payload.items() if key not in ("format", CRC)}


def read_json(path: Path, below: Path | None = None) -> dict[str, Any]:
    """Return the object in a whole file, without its format version."""
    return decode_file(read_bytes(path, below), str(path))


def read_json_or_nothing(path: Path, below: Path | None = None) -> dict[str, Any]:
    """Return the object in a whole file; an empty one where there is none, or none that can be read."""
    try:
        return read_json(path, below)
    except RunDirectoryError:
        return {}
