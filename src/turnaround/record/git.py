"""The commit of the repository around a folder, read without running anything that the repository names.

A repository is somebody else's input: an unpacked archive may bring a `.git` whose settings start programs (clean
filters, fsmonitor, hooks, lazy fetches, submodules) at the first `git status`. So the commit is read from `.git/HEAD`
and the refs as text, and `git` itself runs only with a repository directory of our own, empty and temporary, that
borrows the index and the objects: git never opens the repository's settings, hooks or attributes in `.git/info`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PREFIX = "turnaround-git-"
GIT_TIMEOUT_S = 2.0
"""A commit is worth a moment of waiting, not a hung network file system."""
_MAX_FILE_BYTES = 64 * 2**20  # packed-refs of a repository with a million refs; any other file is far smaller
_MAX_SYMBOLIC_REFS = 5  # git's own limit (SYMREF_MAXDEPTH)
_OBJECT_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")  # SHA-1 or SHA-256
_REF_NAME = re.compile(r"refs/[^\x00-\x20\x7f~^:?*\[\\]{1,1000}")

# What makes git compare converted content: without the settings and programs that convert it, a file that was only
# touched looks changed. A clean answer stays true, because git does not open a file whose size and times are those of
# the index.
_CONVERTING_SETTINGS = re.compile(r"\[\s*(?:filter|include)|autocrlf|\beol\b|safecrlf|filemode|symlinks", re.IGNORECASE)
_CONVERTING_ATTRIBUTES = re.compile(r"\b(?:filter|ident|text|eol|crlf|working-tree-encoding)\b")
_FILTER_ATTRIBUTE = re.compile(r"\bfilter\b")  # the others in a work tree's .gitattributes git applies by itself


@dataclass(frozen=True, kw_only=True)
class Repository:
    """The folders of a repository."""

    top: Path
    """The folder of the work tree, which holds `.git`."""
    git_dir: Path
    """HEAD and index of this work tree."""
    common_dir: Path
    """Refs, objects and settings; another folder than `git_dir` in a work tree of `git worktree add`."""


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return {"commit", "dirty"} of the repository around the folder; None when there is none.

    `commit` is None before the first commit and where it cannot be read; `dirty` is None when nobody can say without
    running programs of the repository, or not in time.
    """
    repository = find_repository(folder)
    if repository is None:
        return None
    commit = head_commit(repository)
    return {"commit": commit, "dirty": _is_dirty(repository, commit)}


def is_tracked(file: Path) -> bool:
    """Return whether the repository around a file knows it: a copy that merely lies inside is not part of it."""
    repository = find_repository(file.parent)
    if repository is None:
        return False
    name = os.path.relpath(os.path.realpath(file), os.path.realpath(repository.top))
    return bool(_git(repository, None, "ls-files", "--", f":(literal){name}"))


def find_repository(folder: Path) -> Repository | None:
    """Return the nearest repository around a folder; None when there is none, or none that may be followed."""
    here = Path(os.path.realpath(folder))
    for top in (here, *here.parents):
        dot_git = top / ".git"
        try:
            mode = dot_git.lstat().st_mode
        except OSError:
            continue
        if stat.S_ISREG(mode):
            return _linked_repository(top, dot_git)
        if stat.S_ISDIR(mode) and (dot_git / "HEAD").exists() and (dot_git / "objects").is_dir():
            return Repository(top=top, git_dir=dot_git, common_dir=dot_git)
    return None


def _linked_repository(top: Path, dot_git: Path) -> Repository | None:
    """Follow a `.git` file ("gitdir: PATH"), but only to a directory that could not have come in the same archive.

    A work tree's directory points back at the `.git` file; a submodule's lies in `.git/modules` of a folder above.
    """
    text = _read_text(dot_git) or ""
    if not text.startswith("gitdir:"):
        return None
    git_dir = Path(os.path.realpath(top / text.removeprefix("gitdir:").strip()))
    back = _read_text(git_dir / "gitdir")
    if git_dir.parent.name == "worktrees" and back is not None and os.path.realpath(back.strip()) == str(dot_git):
        return Repository(top=top, git_dir=git_dir, common_dir=git_dir.parent.parent)
    if any(git_dir.is_relative_to(parent / ".git" / "modules") for parent in top.parents):
        return Repository(top=top, git_dir=git_dir, common_dir=git_dir)
    return None


def head_commit(repository: Repository) -> str | None:
    """Return the object id that HEAD stands for; None before the first commit, or when it cannot be read."""
    name = "HEAD"
    for _ in range(_MAX_SYMBOLIC_REFS + 1):
        text = _read_text(repository.git_dir / name)
        if text is None and repository.git_dir != repository.common_dir:
            text = _read_text(repository.common_dir / name)
        if text is None:
            return _packed_ref(repository.common_dir, name)
        text = text.strip()
        if not text.startswith("ref:"):
            return text if _OBJECT_ID.fullmatch(text) else None
        name = text.removeprefix("ref:").strip()
        if not _REF_NAME.fullmatch(name) or ".." in name:
            return None
    return None


def _packed_ref(common_dir: Path, name: str) -> str | None:
    """Look a ref up among those that `git gc` has moved into one file, a line "OBJECT-ID NAME" each."""
    for line in (_read_text(common_dir / "packed-refs") or "").splitlines():
        object_id, _, ref = line.partition(" ")
        if ref == name:
            return object_id if _OBJECT_ID.fullmatch(object_id) else None
    return None


def _read_text(path: Path) -> str | None:
    """Return the text of a plain file that is no link, or None. A FIFO is not waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode) or os.path.realpath(path) != str(path):
                return None  # a link on the way may lead anywhere
            content = file.read(_MAX_FILE_BYTES + 1)
    except (OSError, ValueError):
        return None
    return content.decode("utf-8", "replace") if len(content) <= _MAX_FILE_BYTES else None


def _is_dirty(repository: Repository, commit: str | None) -> bool | None:
    """Return whether tracked files differ from the commit; None when that cannot be told."""
    # Submodules are left out: git would run a second git in each of them, with their own settings.
    changes = _git(
        repository, commit, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all", "--no-renames"
    )
    if changes is None:
        return None
    return None if changes and _converts_content(repository) else bool(changes)


def _converts_content(repository: Repository) -> bool:
    """Return whether settings or attributes that git was not shown could make a changed file equal to the commit."""
    settings = _read_text(repository.common_dir / "config") or ""
    # git writes "filemode = true" into every new repository; only the contrary changes an answer.
    settings = re.sub(r"(?i)filemode\s*=\s*true", "", settings)
    return bool(
        _CONVERTING_SETTINGS.search(settings)
        or _CONVERTING_ATTRIBUTES.search(_read_text(repository.common_dir / "info" / "attributes") or "")
        or _FILTER_ATTRIBUTE.search(_read_text(repository.top / ".gitattributes") or "")
    )


def _git_program() -> str | None:
    """Return git's path; None where it is not installed.

    Only absolute entries of PATH count: an empty one, or `.`, stands for the folder where git runs, and so for the
    repository, which may bring a program of that name.
    """
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return shutil.which("git", path=os.pathsep.join(folder for folder in folders if os.path.isabs(folder)))


def _git(repository: Repository, commit: str | None, *arguments: str) -> str | None:
    """Return what git prints about the index and the work tree; None when it fails, hangs or is not installed."""
    _remove_leftovers()
    program = _git_program()
    if program is None:
        return None
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-", ignore_cleanup_errors=True) as folder:
        git_dir = Path(folder)
        try:
            # A git directory of our own around the objects and the index of theirs: git then reads no settings of a
            # repository that somebody else has made, and settings can name programs to run.
            (git_dir / "refs").mkdir()
            (git_dir / "HEAD").write_text(f"{commit}\n" if commit else "ref: refs/heads/none\n", encoding="ascii")
            done = subprocess.run(
                [program, *arguments],
                cwd=repository.top,
                env=_environment(repository, git_dir),
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=GIT_TIMEOUT_S,
                check=False,
            )
        except (OSError, ValueError, subprocess.SubprocessError):
            return None
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else None


def _remove_leftovers() -> None:
    """Remove the directories of processes that were killed while git ran."""
    if not Path("/proc/self").exists():  # nothing here tells whether the owner lives
        return
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            owner = re.fullmatch(rf"{_PREFIX}(\d+)-\w+", entry.name)
            if owner is None or Path(f"/proc/{owner[1]}").exists():
                continue
            # The folder is everybody's: only directories of this user, and no links. Another process may remove
            # an entry between the listing and the look at it; the entries after it are still ours to look at.
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.getuid():
                    shutil.rmtree(entry.path, ignore_errors=True)


def _environment(repository: Repository, git_dir: Path) -> dict[str, str]:
    """Return the variables that show git our own directory, and neither the repository's nor the user's settings."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "XDG_CONFIG"))}
    return inherited | {
        "GIT_DIR": str(git_dir),
        "GIT_WORK_TREE": str(repository.top),
        "GIT_INDEX_FILE": str(repository.git_dir / "index"),
        "GIT_OBJECT_DIRECTORY": str(repository.common_dir / "objects"),
        "GIT_OPTIONAL_LOCKS": "0",  # never disturb a git command of the user
        # A filter that the user has set up (git-lfs) runs for a repository's attributes too.
        "HOME": str(git_dir),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_TERMINAL_PROMPT": "0",
    }
