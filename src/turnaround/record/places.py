"""Where the images of a private run lie: kept beside its record, not in it.

A private record (host.py) names images, cache, split and weights by their last names, and its messages name no folder.
Where they really lie is in a file of this user, $XDG_STATE_HOME/turnaround/private/TOKEN.json; recipe.json has the
token, and with it a resume finds them. The processes of a start are told by an environment variable.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import secrets
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from turnaround.errors import RunDirectoryError, StorageError
from turnaround.record.files import make_folder, read_bytes, read_json, replace_file
from turnaround.record.host import PLACES_VARIABLE, host_name, is_private
from turnaround.record.writer import write_json

KEYS = (("data", "source"), ("data", "cache"), ("data", "split_by_photo"), ("model", "weights"))
"""Values of a recipe that may be paths."""
PLACES = "places"
"""The key of `launch` in recipe.json that says which file knows."""
_PATH = re.compile(r"(?<![\w./~-])~?(?:/[^\s/'\"`<>|:;,()]+){2,}/?")


def without_paths(record: dict[str, Any]) -> dict[str, Any]:
    """Return recipe.json as it is written: where the record is private, without paths, which are kept elsewhere."""
    if not is_private():
        return record
    known = _paths_from_environment()
    paths = {f"{section}.{key}": value for section, key in KEYS if os.sep in (value := str(record[section].get(key)))}
    if paths and paths != known.get("paths"):
        known = {"token": known.get("token") or secrets.token_hex(16), "paths": {**known.get("paths", {}), **paths}}
        os.environ[PLACES_VARIABLE] = json.dumps(known)
        with suppress(StorageError, OSError):  # a home that cannot be written: the run trains, and a resume says it
            _keep(known)
    names = {key: Path(path).name for key, path in paths.items()}
    told: dict[str, Any] = {key: _redacted_values(record[key]) for key in ("images", "automatic") if key in record}
    launch = {"launch": {**record.get("launch", {}), PLACES: known["token"]}} if known else {}
    return {**_with_values(record, names), **told, **launch}


def with_passed_paths(record: dict[str, Any]) -> dict[str, Any]:
    """Return recipe.json with the paths that whoever started this process has passed on; as it is where nobody has."""
    return _with_values(record, _paths_from_environment().get("paths", {}))


def with_paths(record: dict[str, Any]) -> dict[str, Any]:
    """Return recipe.json with its paths, for a resume; RunDirectoryError where nobody here knows them."""
    launch = record.get("launch")
    token = launch.get(PLACES) if isinstance(launch, dict) else None
    if token is None:
        return record
    if not isinstance(token, str) or not re.fullmatch(r"[0-9a-f]{32}", token):
        raise RunDirectoryError(f"recipe.json is damaged: launch.{PLACES} is no token of ours. Received: {token!r}.")
    try:
        paths = read_json(_file(token))["paths"]
        known = {"token": token, "paths": {key: str(paths[key]) for key in paths if tuple(key.split(".")) in KEYS}}
    except (RunDirectoryError, KeyError, TypeError, AttributeError) as error:
        raise RunDirectoryError(
            f"This run is private: where its images lie is only known to the user who began it, in {_file(token)}, "
            "which is not there or damaged. Go on where it began, or put that file there."
        ) from error
    os.environ[PLACES_VARIABLE] = json.dumps(known)
    return with_passed_paths(record)


def redacted(text: str) -> str:
    """Return a message as the record keeps it: where that is private, without folders, user and host."""
    if not is_private():
        return text
    for path in sorted(_paths_from_environment().get("paths", {}).values(), key=len, reverse=True):
        text = text.replace(path, Path(path).name)
    for folder in (os.getcwd(), os.path.expanduser("~")):
        text = text.replace(f"{folder}{os.sep}", "") if len(folder) > 1 else text
    text = _PATH.sub(lambda path: Path(path[0]).name, text)
    for name, code in ((socket.gethostname(), host_name()), (_user(), "user")):
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", code, text) if name else text
    return text


def without_folders(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings as a study keeps them: where the record is private, each path by its last name alone."""
    return {key: _told(key, value) for key, value in settings.items()} if is_private() else settings


def _told(key: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _told(name, inner) for name, inner in value.items()}
    if isinstance(value, str) and os.sep in value and key in {name for _, name in KEYS}:
        return Path(value).name
    return _redacted_values(value)


def clear_log(path: Path, run: Path) -> None:
    """Take folders, user and host out of what processes have printed, once they have ended."""
    with suppress(StorageError, RunDirectoryError):
        content = read_bytes(path, run)
        told = redacted(content.decode("utf-8", "replace")).encode()
        if told != content:
            replace_file(path, told, run)


def _paths_from_environment() -> dict[str, Any]:
    """Return {"token", "paths"} of the run that this process works for; nothing where there is none."""
    with suppress(ValueError):
        known = json.loads(os.environ.get(PLACES_VARIABLE, "{}"))
        return known if isinstance(known, dict) else {}
    return {}


def _keep(known: Mapping[str, Any]) -> None:
    path = _file(known["token"])
    path.parent.parent.mkdir(parents=True, exist_ok=True)
    make_folder(path.parent)
    path.parent.chmod(0o700)  # nobody else's business
    write_json(path, known)


def state_folder(name: str) -> Path:
    """Return a folder of this user for what is nobody else's business; it may not be there yet."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "turnaround" / name


def _file(token: str) -> Path:
    return state_folder("private") / f"{token}.json"


def _with_values(record: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    record = dict(record)
    for name, value in values.items():
        section, key = name.split(".")
        record[section] = {**record[section], key: value}
    return record


def _redacted_values(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: inner if key == "classes" else _redacted_values(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted_values(inner) for inner in value]
    return redacted(value) if isinstance(value, str) else value


def _user() -> str:
    with suppress(Exception):  # a user without a name: a container's
        return getpass.getuser()
    return ""
