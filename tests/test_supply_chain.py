"""What `make demo` and `make test` install: by version and SHA-256, and the same in every file that names versions."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
LOCKS = ("requirements.lock", "requirements-test.lock", "requirements-tools.lock")
FOREIGN = {"colorama", "httpx2-jsfetch", "setuptools"}
"""Of other platforms, or needed to build: not in constraints.txt, which lists what is installed here."""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(name: str) -> dict[str, tuple[str, int]]:
    """Version and number of hashes of each package."""
    entries = re.split(r"\n(?=\S)", (ROOT / name).read_text().strip())
    found = {}
    for entry in entries:
        package, version = re.match(r"([\w.-]+)==([\w.+]+)", entry).groups()  # type: ignore[union-attr]
        found[normal(package)] = (version, len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", entry)))
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_has_its_hashes_and_no_address(name: str) -> None:
    assert [package for package, (_, hashes) in locked(name).items() if not hashes] == []
    assert not re.search(r"://|--index|--find-links", (ROOT / name).read_text())


def test_the_locks_hold_the_versions_of_the_constraints() -> None:
    lines = (ROOT / "constraints.txt").read_text().split()
    pinned = {normal(name): version for name, _, version in (line.partition("==") for line in lines)}
    for name in LOCKS[:2]:
        versions = {package: version for package, (version, _) in locked(name).items() if package not in FOREIGN}
        assert versions == {package: pinned[package] for package in versions}
    assert {*pinned} == {*locked("requirements-test.lock")} - FOREIGN
    assert locked("requirements.lock").items() <= locked("requirements-test.lock").items()


def test_what_the_project_needs_is_locked() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def names(words: list[str]) -> set[str]:
        return {normal(re.match(r"[\w.-]+", word)[0]) for word in words}  # type: ignore[index]

    assert names(project["dependencies"]) <= {*locked("requirements.lock")}
    assert names(project["optional-dependencies"]["test"]) <= {*locked("requirements-test.lock")}


AUDITED: dict[str, Any] = {"name": "a", "version": "1", "vulns": []}
SKIPPED: dict[str, Any] = {"name": "b", "skip_reason": "not found"}
HOLE: dict[str, Any] = {"name": "c", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}


@pytest.mark.parametrize(
    ("packages", "status", "words"),
    [
        ([SKIPPED], 69, "NOTHING WAS AUDITED"),
        ([], 69, "NOTHING WAS AUDITED"),
        ([AUDITED], 0, "1 packages audited, 0 with advisories."),
        ([AUDITED, SKIPPED], 0, "Could not be asked about: b."),
        ([AUDITED, HOLE], 1, "c 2: CVE-1, mended in 3"),
    ],
)
def test_an_audit_that_asked_nobody_is_not_called_clean(packages: list[Any], status: int, words: str) -> None:
    judged = runpy.run_path(str(ROOT / ".ci" / "audit"))["judged"]
    said, found = judged({"dependencies": packages})
    assert found == status
    assert words in said
