"""A token that stays the same from one start to the next, so that an open page finds its server again.

It lies in a folder of the user's own, in a file that nobody else may read: not in a run directory, which others may.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
from pathlib import Path

STATE_FOLDER = "XDG_STATE_HOME"


def kept_token(purpose: str) -> tuple[str, bool]:
    """Return the token for this purpose, and true where it will be the same at the next start."""
    name = hashlib.sha256(os.fsencode(purpose)).hexdigest()[:32]
    try:
        folder = _folder()
        path = folder / f"{name}.token"
        return _read(path) or _made(path), True
    except OSError:  # no home, a full disk, somebody else's folder: then it lives as long as the server
        return secrets.token_urlsafe(24), False


def _folder() -> Path:
    home = os.environ.get(STATE_FOLDER, "")
    base = Path(home) if os.path.isabs(home) else Path(os.path.expanduser("~")) / ".local" / "state"
    folder = base / "turnaround" / "tokens"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} is not ours")
    folder.chmod(0o700)
    return folder


def _read(path: Path) -> str | None:
    """Return the token; None when there is none, or when others may have seen or written it."""
    # O_NOFOLLOW against a link planted by others; O_NONBLOCK, since opening a pipe would wait for its writer.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        is_ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
        text = file.read(100).decode("ascii", "replace").strip() if is_ours else ""
    return text if re.fullmatch(r"[A-Za-z0-9_-]{32}", text) else None


def _made(path: Path) -> str:
    token = secrets.token_urlsafe(24)
    # O_EXCL with 0600 makes the file private from the start; the rename publishes it whole.
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(token + "\n")
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return token
