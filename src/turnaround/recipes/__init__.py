"""Recipes by name, file or folder: turn what a user types into a checked recipe.

Enters: SOURCE (a built-in name, a TOML file, a folder of images, a table, or shards) and `section.key=value` overrides.
Leaves: a `Recipe`, not yet resolved, whose paths no longer depend on the current directory.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, get_type_hints

from turnaround.errors import RecipeError, one_of
from turnaround.recipe import AUTO, CACHES, DOWNLOADABLE, GENERATED, SECTIONS, Recipe

KEY_COLUMNS = 32
"""Room for a key and its default in the list of all keys."""
DATA_FILES = (".csv", ".tsv", ".jsonl", ".tar", ".parquet")
"""Suffixes of files that hold or name images: those of data/formats."""
ARCHIVES = (".zip", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar")


def names() -> tuple[str, ...]:
    """Return the names of the built-in recipes."""
    return tuple(sorted(f.name.removesuffix(".toml") for f in files(__name__).iterdir() if f.name.endswith(".toml")))


def text(name: str) -> str:
    """Return a built-in recipe as it stands in its file, comments and all."""
    if name not in names():
        raise RecipeError(one_of("recipe", name, names()))
    return files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8")


def headline(name: str) -> str:
    """Return the first sentence of a recipe's heading comment."""
    return text(name).split("\n", 1)[0].lstrip("# ").strip()


def find(source: str, overrides: list[str] | None = None) -> Recipe:
    """Return the recipe that SOURCE stands for, with the overrides applied."""
    values = _values(source)
    for override in overrides or []:
        section, name, value = _parsed(override)
        values.setdefault(section, {})[name] = value
    return _absolute(Recipe.from_dict(values), Path.cwd())


def overrides_of(settings: Mapping[str, object]) -> list[str]:
    """Return settings from Python as `--set` takes them: true, false and none in lower case."""

    def text(value: object) -> str:
        return str(value).lower() if isinstance(value, bool) or value is None else str(value)

    return [f"{key}={text(value)}" for key, value in settings.items()]


def _values(source: str) -> dict[str, Any]:
    """Return plain values: by built-in name, then TOML file, then folder. A name with a slash is always a path."""
    path = _expanded(source)
    if source in names():
        return {**tomllib.loads(text(source)), "name": source}
    if path.suffix == ".toml":
        return _file_values(path)
    if source.strip() and os.path.isdir(path):  # False, where Path.is_dir raises, for a name that is too long
        return {"name": path.resolve().name or "folder", "data": {"source": str(path.resolve())}}
    if source.strip() and (path.suffix.lower() in DATA_FILES and (os.path.isfile(path) or _is_pattern(source))):
        whole = path.parent.resolve() / path.name  # a link keeps its name, which tells the format
        return {"name": _pattern_name(whole), "data": {"source": str(whole)}}
    raise RecipeError(_no_source(source, path))


def _is_pattern(source: str) -> bool:
    return re.search(r"[*?\[{]", source) is not None


def _pattern_name(path: Path) -> str:
    """Return a name for a run of these files: that of the table, or of the folder that holds the shards."""
    words = re.sub(r"\{[^}]*\}|[^\w.-]+", "", path.stem).strip("-._")
    return words or path.parent.name or "images"


def _no_source(source: str, path: Path) -> str:
    """Say what a SOURCE that is nothing looks like: an address, a file, a Windows path, a path, or a misspelt name."""
    if told := _address(source):
        return told
    if source.strip() and os.path.isfile(path):
        if path.suffix.lower() in ARCHIVES:
            return f"{source!r} is an archive. Unpack it, and give the folder that holds the class folders."
        folder = str(path.parent.parent) if path.parent.parent != path.parent else ""
        guess = f": {folder!r}?" if folder else "."
        return (
            f"{source!r} is a file, and no table or shard ({', '.join(DATA_FILES)}). Give the folder that holds the "
            f"class folders{guess}"
        )
    if re.match(r"[A-Za-z]:[\\/]", source):
        below = source[2:].replace("\\", "/")
        return (
            f"There is no folder '{source}' here: it is a path of Windows. In WSL it is "
            f"'/mnt/{source[0].lower()}{below}'."
        )
    if os.sep in source:
        there = path
        while not os.path.isdir(there) and there != there.parent:
            there = there.parent
        return (
            f"There is no folder {source!r}: {str(there)!r} is there, but nothing of that name in it. Check the path."
        )
    with os.scandir(path.parent) as entries:
        folders = [entry.name for entry in entries if entry.is_dir()]
    near = difflib.get_close_matches(source, [*names(), *folders], n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return (
        f"{source!r} is neither a folder of images here, nor a recipe file (.toml), nor a built-in recipe "
        f"({', '.join(names())}).{hint or ' Check the path.'}"
    )


def _address(source: str) -> str:
    """Return what to do instead of naming an address; empty for anything else."""
    found = re.match(r"([a-zA-Z][a-zA-Z0-9+.-]*):/{1,2}(?=[^/\\])", source)
    if found is None or len(found[1]) == 1:  # one letter is a drive of Windows
        return ""
    tools = {
        "s3": f"aws s3 sync {source} DIR",
        "gs": f"gcloud storage rsync -r {source} DIR",
        "hf": f"hf download {source.partition('://')[2].removeprefix('datasets/')} --repo-type dataset --local-dir DIR",
    }
    command = tools.get(found[1].lower(), f"wget {source}")
    return (
        f"{source!r} is an address, and nothing is fetched here. Bring the images to a disk that every process sees, "
        f"then name them: {command}; turnaround train DIR"
    )


def _file_values(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(f"There is no recipe file {str(path)!r}. `turnaround recipes copy NAME` makes one.") from None
    except UnicodeDecodeError:
        raise RecipeError(
            f"{str(path)!r} is not valid TOML, which is text in UTF-8. Save it so, or give another file."
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(
            f"{str(path)!r} is not valid TOML: {error}. Correct it there; `turnaround recipes show fruitbowl` is one "
            "that is valid."
        ) from None
    except RecursionError:
        raise RecipeError(f"{str(path)!r} is no recipe: its values are nested too deeply.") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RecipeError(f"{str(path)!r} cannot be read: {reason}.") from None
    recipe = _absolute(Recipe.from_dict(values), path.resolve().parent)
    if recipe.model.name != AUTO and "preset" not in values.get("augment", {}):
        # Files that name a network were written when nothing decided a preset for it: they train as they did.
        recipe = recipe.replace("augment", preset="none")
    return {**recipe.to_dict(), "name": path.stem}


def _absolute(recipe: Recipe, base: Path) -> Recipe:
    """Return the paths made absolute: a recipe file's are relative to the file, a flag's to the current directory."""
    source = recipe.data.source
    # Folders were called cifar10 before there was a recipe of that name, and recipe files name them.
    is_folder = source == "cifar10" and (base / source).is_dir()
    if is_folder or source not in GENERATED + DOWNLOADABLE:
        if told := _address(source):
            raise RecipeError(told)
        recipe = recipe.replace("data", source=str(base / _expanded(source)))
    if recipe.data.split_by_photo == "none":  # as a file may say it: TOML has no null
        recipe = recipe.replace("data", split_by_photo=None)
    elif recipe.data.split_by_photo not in (None, "auto"):
        recipe = recipe.replace("data", split_by_photo=str(base / _expanded(str(recipe.data.split_by_photo))))
    if recipe.data.cache not in CACHES:
        recipe = recipe.replace("data", cache=str(base / _expanded(recipe.data.cache)))
    if recipe.model.weights not in ("imagenet", "none", AUTO):
        recipe = recipe.replace("model", weights=str(base / _expanded(recipe.model.weights)))
    return recipe


def _expanded(path: str) -> Path:
    """Return the path with ~ and ~user replaced, as a shell does."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise RecipeError(f"{path!r}: no such user here. Write './{path}' for a name that begins with ~.") from None


def _parsed(override: str) -> tuple[str, str, Any]:
    """`training.epochs=5` -> ("training", "epochs", 5), by the type that the key has."""
    target, equals, raw = override.partition("=")
    section, dot, name = target.strip().partition(".")
    if not equals or not dot:
        known = [f"{each}.{section}" for each, kind in SECTIONS.items() if section in get_type_hints(kind)]
        hint = f" Did you mean {known[0]}={raw or 'VALUE'}?" if known and not dot else ""
        raise RecipeError(
            f"--set wants section.key=value, for example training.epochs=5. Received: {override!r}.{hint}"
        )
    if section not in SECTIONS:
        raise RecipeError(one_of("section", section, tuple(SECTIONS)))
    hints = get_type_hints(SECTIONS[section])
    if name not in hints:
        raise RecipeError(one_of(f"key in [{section}]", name, tuple(hints)))
    return section, name, _typed(raw.strip(), hints[name])


def _typed(raw: str, hint: Any) -> Any:
    """Return the text as the key's type; what does not fit stays text, and the recipe's own check refuses it."""
    kinds = getattr(hint, "__args__", (hint,))
    if str in kinds and not {int, float} & set(kinds):
        return raw
    if str in kinds and raw.lower() == AUTO:  # a number or auto, which is not the same as none
        return AUTO
    if type(None) in kinds and raw.lower() in ("none", AUTO, ""):
        return None
    if bool in kinds:
        return {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}.get(raw.lower(), raw)
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(raw)
            except ValueError:
                continue
    return raw


def as_toml(recipe: Recipe) -> str:
    """Return a recipe as a file that `turnaround train` takes."""
    lines = [f"# {recipe.name}"]
    for section in SECTIONS:
        lines += ["", f"[{section}]"]
        for name, value in vars(getattr(recipe, section)).items():
            if value is not None:
                lines.append(f"{name} = {_toml_value(value)}")
    return "\n".join(lines)


def keys_text() -> str:
    """Return every key, its default and its meaning, as a commented recipe."""
    lines = []
    for section, kind in SECTIONS.items():
        lines += ["", f"[{section}]  # {(kind.__doc__ or '').splitlines()[0]}"]
        for field in dataclasses.fields(kind):
            default = "none" if field.default is None else _toml_value(field.default)
            choices = f" ({', '.join(field.metadata['choices'])})" if field.metadata["choices"] else ""
            lines.append(f"{f'{field.name} = {default}':<{KEY_COLUMNS}} # {field.metadata['doc']}{choices}")
    return "\n".join(lines[1:])


def _toml_value(value: object) -> str:
    """bool, int, float or str: JSON writes these as TOML does."""
    return json.dumps(value, ensure_ascii=False)
