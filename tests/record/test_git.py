"""The commit is found in every kind of repository, and nothing that a repository names is ever run."""

import os
import subprocess
import time

import pytest

from turnaround.record import git as git_module
from turnaround.record.git import find_repository, git_state, is_tracked
from turnaround.record.machine import describe

SPREAD = {"workers": 4, "processes": 2, "engine": "torch", "launch": "local", "device": "cpu"}


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A busy machine is not a hung file system."""
    monkeypatch.setattr(git_module, "GIT_TIMEOUT_S", 60.0)


def git(folder, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    command = ["git", *identity, "-c", "protocol.file.allow=always", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """One commit of one file."""
    top = tmp_path / "repository"
    top.mkdir()
    git(top, "init")
    (top / "file").write_text("one")
    git(top, "add", "file")
    git(top, "commit", "-m", "first")
    return top


def touch(path):
    """As an unpacked archive leaves a file: the index does not know its times, so git must read it."""
    os.utime(path, (1, 1))


def test_the_commit_and_whether_it_was_changed(tmp_path, monkeypatch):
    assert git_state(tmp_path) is None
    git(tmp_path, "init")
    assert git_state(tmp_path) == {"commit": None, "dirty": False}
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    assert git_state(tmp_path) == {"commit": None, "dirty": True}
    git(tmp_path, "commit", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert git_state(tmp_path) == {"commit": commit, "dirty": False}
    (tmp_path / "untracked").write_text("x")
    (tmp_path / "below").mkdir()
    touch(tmp_path / "file")
    assert git_state(tmp_path / "below") == {"commit": commit, "dirty": False}
    (tmp_path / "file").write_text("two")
    assert git_state(tmp_path) == {"commit": commit, "dirty": True}
    monkeypatch.chdir(tmp_path)
    assert describe(**SPREAD)["git"] == {"commit": commit, "dirty": True}


def test_every_place_where_git_keeps_a_commit(repository, tmp_path):
    first = git(repository, "rev-parse", "HEAD")
    git(repository, "pack-refs", "--all")
    assert git_state(repository) == {"commit": first, "dirty": False}
    git(repository, "gc", "--prune=now")
    assert git_state(repository) == {"commit": first, "dirty": False}
    git(repository, "checkout", "--detach")
    assert git_state(repository) == {"commit": first, "dirty": False}
    work_tree = tmp_path / "elsewhere"
    git(repository, "worktree", "add", "-b", "other", str(work_tree))
    (work_tree / "file").write_text("two")
    git(work_tree, "commit", "-am", "second")
    second = git(work_tree, "rev-parse", "HEAD")
    assert second != first
    assert git_state(work_tree) == {"commit": second, "dirty": False}
    assert git_state(repository)["commit"] == first
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--shared", str(repository), str(clone))
    assert git_state(clone) == {"commit": first, "dirty": False}
    git(clone, "submodule", "add", str(repository), "part")
    git(clone, "commit", "-am", "with a part")
    assert git_state(clone / "part") == {"commit": first, "dirty": False}
    assert git_state(clone) == {"commit": git(clone, "rev-parse", "HEAD"), "dirty": False}


def test_only_a_tracked_file_belongs_to_the_repository(repository):
    (repository / "copy").write_text("not added")
    assert is_tracked(repository / "file")
    assert not is_tracked(repository / "copy")
    assert not is_tracked(repository.parent / "nowhere")


PROGRAMS = """
[filter "x"]
    clean = touch {canary} && cat
    smudge = touch {canary} && cat
    process = touch {canary}
    required = true
[core]
    fsmonitor = touch {canary}
    hooksPath = {hooks}
    sshCommand = touch {canary}
    pager = touch {canary}
    editor = touch {canary}
    alternateRefsCommand = touch {canary}
    gitProxy = touch {canary}
[diff]
    external = touch {canary}
[diff "x"]
    textconv = touch {canary}
    command = touch {canary}
[gpg]
    program = touch {canary}
[log]
    showSignature = true
[status]
    submoduleSummary = true
[extensions]
    partialClone = origin
[remote "origin"]
    url = ext::touch {canary}
    promisor = true
[protocol "ext"]
    allow = always
[credential]
    helper = !touch {canary}
"""


def arm(git_dir, canary):
    """Settings that start a program wherever git could start one."""
    hooks = git_dir / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("post-index-change", "fsmonitor-watchman", "post-checkout", "reference-transaction"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {canary}\n")
        (hooks / name).chmod(0o755)
    with open(git_dir / "config", "a") as config:
        config.write(PROGRAMS.format(canary=canary, hooks=hooks))


def test_no_program_of_a_repository_is_started(repository, tmp_path, monkeypatch):
    canary = tmp_path / "canary"
    (repository / ".gitattributes").write_text("* filter=x diff=x\n")
    git(repository, "add", ".gitattributes")
    git(repository, "commit", "-m", "attributes")
    git(repository, "submodule", "add", str(repository), "part")
    git(repository, "commit", "-m", "part")
    commit = git(repository, "rev-parse", "HEAD")
    arm(repository / ".git", canary)
    arm(repository / ".git" / "modules" / "part", canary)
    for path in (repository / "file", repository / "part" / "file"):
        touch(path)
    monkeypatch.chdir(repository)
    # The index of an unpacked archive knows other times: git has to read the file, and would clean it first.
    assert describe(**SPREAD)["git"] == {"commit": commit, "dirty": False}
    assert git_state(repository / "part")["commit"]
    (repository / "file").write_text("two")
    assert git_state(repository) == {"commit": commit, "dirty": None}
    assert not canary.exists()
    subprocess.run(["git", "-C", str(repository), "status"], capture_output=True, check=False)
    assert canary.exists()  # the trap works


@pytest.mark.parametrize("first", ["", ".", "./.", "below/.."])
def test_a_git_in_the_repository_is_not_started(repository, tmp_path, monkeypatch, first):
    """A relative entry of PATH means the folder where git runs; an empty one means the same."""
    canary, trap = tmp_path / "canary", repository / "git"
    trap.write_text(f"#!/bin/sh\n: >{canary}\n")
    trap.chmod(0o755)
    (repository / "below").mkdir()
    monkeypatch.setenv("PATH", os.pathsep.join([first, os.environ["PATH"]]))
    monkeypatch.chdir(repository)
    assert git_state(repository)["dirty"] is False
    assert is_tracked(repository / "file")
    monkeypatch.setenv("PATH", first)
    assert git_state(repository)["dirty"] is None  # no git at all is better than that one
    assert not canary.exists()
    subprocess.run(["git", "status"], cwd=repository, env={"PATH": first or "."}, check=False)
    assert canary.exists()  # the trap works


def test_a_filter_of_the_user_is_not_started_for_somebody_elses_repository(repository, tmp_path, monkeypatch):
    canary = tmp_path / "canary"
    (tmp_path / ".gitconfig").write_text(f'[filter "lfs"]\n clean = touch {canary} && cat\n')
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("GIT_CONFIG_GLOBAL", raising=False)
    (repository / ".gitattributes").write_text("* filter=lfs\n")
    (repository / "file").write_text("two")
    assert git_state(repository)["dirty"] is None
    assert not canary.exists()


def test_a_setting_in_the_environment_does_not_bring_one_back(repository, tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "nowhere"))
    assert git_state(repository)["dirty"] is False


@pytest.mark.parametrize(
    "content",
    [
        "ref: refs/heads/../../../secret",
        "ref: /etc/passwd",
        "ref: refs/heads/" + "x" * 5000,
        "ref: refs/heads/loop",
        "not a commit",
        "",
        "\0" * 100,
    ],
)
def test_a_head_that_leads_elsewhere_is_no_commit(repository, content):
    (repository.parent / "secret").write_text("a" * 40)
    (repository / ".git" / "refs" / "heads" / "loop").write_text("ref: refs/heads/loop\n")
    (repository / ".git" / "HEAD").write_text(content)
    assert git_state(repository)["commit"] is None


def test_links_and_pipes_are_not_followed(repository, tmp_path):
    secret = tmp_path / "secret"
    (secret / "heads").mkdir(parents=True)
    (secret / "heads" / "main").write_text("a" * 40)
    branch = repository / ".git" / "refs" / "heads" / "main"
    branch.unlink()
    branch.symlink_to(secret / "heads" / "main")
    assert git_state(repository)["commit"] is None
    branch.unlink()
    os.mkfifo(branch)
    assert git_state(repository)["commit"] is None
    branch.unlink()
    (repository / ".git" / "refs" / "heads").rmdir()
    (repository / ".git" / "refs" / "heads").symlink_to(secret / "heads")
    assert git_state(repository)["commit"] is None


def test_a_git_file_leads_only_to_a_directory_that_knows_it(repository, tmp_path):
    thief = tmp_path / "thief"
    thief.mkdir()
    for target in (repository / ".git", "../repository/.git", "/dev", "", "x" * 5000):
        (thief / ".git").write_text(f"gitdir: {target}\n")
        assert find_repository(thief) is None
    (thief / ".git").unlink()
    (thief / ".git").symlink_to(repository / ".git")
    assert find_repository(thief) is None


def test_a_git_that_hangs_is_not_waited_for(repository, tmp_path, monkeypatch):
    commit = git(repository, "rev-parse", "HEAD")
    program = tmp_path / "git"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(git_module, "GIT_TIMEOUT_S", 0.2)
    monkeypatch.chdir(repository)
    start_s = time.monotonic()
    described = describe(**SPREAD)
    assert (described["git"], described["turnaround_git"]) == ({"commit": commit, "dirty": None}, None)
    assert time.monotonic() - start_s < 60


def test_without_git_the_commit_is_still_known(repository, tmp_path, monkeypatch):
    commit = git(repository, "rev-parse", "HEAD")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(repository) == {"commit": commit, "dirty": None}


@pytest.mark.fault(3, "the folder of a process that was killed while git ran goes at the next start; others stay")
def test_folders_of_killed_processes_go(repository, tmp_path, monkeypatch):
    places = tmp_path / "tmp"
    dead = subprocess.Popen(["true"])
    dead.wait()
    names = [f"turnaround-git-{dead.pid}-abc_d123", f"turnaround-git-{os.getpid()}-abcd1234", "turnaround-git-abcd1234"]
    for name in names:
        (places / name / "refs").mkdir(parents=True)
    (places / f"turnaround-git-{dead.pid}-linked00").symlink_to(repository)
    monkeypatch.setattr(git_module.tempfile, "tempdir", str(places))
    assert git_state(repository)["dirty"] is False
    assert sorted(path.name for path in places.iterdir()) == sorted([*names[1:], f"turnaround-git-{dead.pid}-linked00"])
    assert (repository / "file").exists()


def test_folders_that_another_process_removes_meanwhile_do_not_keep_the_rest(tmp_path, monkeypatch):
    monkeypatch.setattr(git_module.tempfile, "gettempdir", lambda: str(tmp_path))
    ended = subprocess.Popen(["true"])
    ended.wait()
    leftovers = [tmp_path / f"{git_module._PREFIX}{ended.pid}-{number}" for number in range(8)]
    for folder in leftovers:
        folder.mkdir()
    remove, removed = git_module.shutil.rmtree, []

    def remove_beside_another_process(path, ignore_errors):
        if not removed:
            for folder in [folder for folder in leftovers if str(folder) != path][::2]:
                folder.rmdir()
        removed.append(path)
        remove(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(git_module.shutil, "rmtree", remove_beside_another_process)
    git_module._remove_leftovers()
    assert list(tmp_path.iterdir()) == []
