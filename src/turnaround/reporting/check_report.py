"""The report of a check of images: for the terminal, the worst first; and as a page with thumbnails.

Names of files and classes come from others: each is text in both, and the page runs no script at all.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from turnaround.reporting.page.templates import asset, environment
from turnaround.reporting.text_layout import NARROWEST, clean, wrapped
from turnaround.web.pages import base_css, content_hash
from turnaround.words import counted, percent

EXAMPLES = 3
"""Files named for each kind of problem on the terminal."""
EXAMPLES_OF_LABELS = 10
MAX_FILES = 12
"""Files shown of a group or of an oddity on the page."""
KINDS = {"exact": "exact copies", "near": "the same picture, saved or lit differently", "augmented": "altered copies"}
ADVICE = {
    "leak": "turnaround check {folder} --split-by-photo split.json, then train with "
    "--set data.split_by_photo=split.json; or remove the copies.",
    "leak in this split": "Train with the split that was written, which keeps each photo on one side.",
    "contradiction": "Decide which class is right, and remove the others.",
    "bad": "Repair or remove them, or train without them: --set data.skip_bad=true.",
    "label": "Look at them (--page FILE.html has the pictures): some are wrong, others only unusual.",
    "copies": "With this split they do no harm to the accuracy; with another one they may be torn apart.",
}

Payload = Mapping[str, Any]


def check_lines(payload: Payload, *, width: int) -> Iterator[Text]:
    """Yield everything, in lines no wider than the terminal."""
    width = max(width, NARROWEST)
    for style, head, body, following in _paragraphs(payload):
        for line in wrapped(clean(head), width):
            yield Text(line, style=style)
        for text in body:
            yield from map(Text, wrapped(clean(text), width, first="    ", rest="      "))
        if following:
            yield from map(Text, wrapped(following, width, first="  Next: ", rest="        "))


def _paragraphs(payload: Payload) -> Iterator[tuple[str, str, list[str], str]]:
    """Yield style, first sentence, examples, what to do."""
    classes, num = payload["classes"], payload["num_train"] + payload["num_validation"]
    yield (
        "bold",
        f"{payload['folder']}: {counted(num, 'image')} in {counted(len(classes), 'class')}, "
        f"{payload['num_train']:,} to train on, {payload['num_validation']:,} to validate with ({payload['split']})",
        [],
        "",
    )
    yield from _leaks(payload)
    yield from _contradictions(payload)
    if payload["bad"]:
        listed = [f"{one['file']}: {one['reason']}" for one in payload["bad"]]
        yield "bold red", f"problem: {_images(len(listed))} cannot be read.", _some(listed), ADVICE["bad"]
    yield from _copies(payload)
    yield from _labels(payload)
    for sentence in payload["warnings"]:
        yield "yellow", f"caution: {sentence}", [], ""
    for one in payload["odd"]:
        yield "", f"note: {_images(len(one['files']))} {one['what']}: {one['becomes']}.", one["files"][:1], ""
    if "split_file" in payload:
        split = payload["split_file"]
        yield (
            "bold",
            f"Split by photo written to {split['path']}: {split['num_train']:,} to train on, "
            f"{split['num_validation']:,} to validate with.",
            [],
            f"turnaround train {_folder(payload)} --set data.split_by_photo={clean(split['path'])}",
        )
    if not payload["serious"]:
        yield "green", "Nothing serious was found.", [], ""


def _folder(payload: Payload) -> str:
    """Return the folder that was looked at, as a command takes it."""
    return shlex.quote(clean(str(payload["folder"])))


def _leaks(payload: Payload) -> Iterator[tuple[str, str, list[str], str]]:
    leaks, crossing = payload["leaks"], [one for one in payload["groups"] if one["crosses_split"]]
    if not leaks["num"]:
        return
    kinds = ", ".join(f"{num} {KINDS[kind]}" for kind, num in leaks["by_kind"].items())
    yield (
        "bold red",
        f"problem: {leaks['num']:,} of {leaks['of']:,} validation images ({percent(leaks['num'] / leaks['of'], 1)}) "
        f"show a photo that is also trained on ({kinds}): the validation accuracy will be too high.",
        _some([_example(one) for one in crossing]),
        ADVICE["leak in this split"] if "split_file" in payload else ADVICE["leak"].format(folder=_folder(payload)),
    )


def _contradictions(payload: Payload) -> Iterator[tuple[str, str, list[str], str]]:
    groups = [one for one in payload["groups"] if len(one["classes"]) > 1]
    if groups:
        listed = [f"{_example(one)} ({' and '.join(one['classes'])})" for one in groups]
        sentence = (
            f"problem: {len(groups):,} photo{'s stand' if len(groups) > 1 else ' stands'} under more than one class."
        )
        yield "bold red", sentence, _some(listed), ADVICE["contradiction"]


def _copies(payload: Payload) -> Iterator[tuple[str, str, list[str], str]]:
    """Yield groups that do no harm to the split or to the labels."""
    for kind, words in KINDS.items():
        groups = [
            one
            for one in payload["groups"]
            if one["kind"] == kind and not one["crosses_split"] and len(one["classes"]) < 2
        ]
        if groups:
            num = sum(len(one["files"]) for one in groups)
            sentence = f"caution: {num:,} images in {counted(len(groups), 'group')} within one part: {words}."
            yield "yellow", sentence, _some([_example(one) for one in groups]), ADVICE["copies"]


def _labels(payload: Payload) -> Iterator[tuple[str, str, list[str], str]]:
    """Yield the labels that are contradicted, the least probable first."""
    labels = payload.get("labels")
    if labels is None:
        return
    if labels["note"]:
        yield "yellow", f"caution: {labels['note']}", [], ""
    suspects, asked = labels["suspects"], f"{_images(labels['num_asked'])} asked about"
    if not suspects:
        yield "green", f"No label is contradicted by {labels['by']} ({asked}; {labels['method']}).", [], ""
        return
    yield (
        "yellow",
        f"caution: {counted(len(suspects), 'label')} contradicted by {labels['by']} ({asked}; {labels['method']}).",
        _some([suspect_words(one) for one in suspects], num=EXAMPLES_OF_LABELS),
        ADVICE["label"],
    )


def suspect_words(one: Payload) -> str:
    """Return what stands under the picture of a contradicted label."""
    return (
        f"{one['file']}: labelled {one['label']} ({percent(one['label_probability'], 1)}), looks like "
        f"{one['suggested']} ({percent(one['suggested_probability'])})"
    )


def _example(one: Payload) -> str:
    """Return two files of a group, on different sides or under different classes where there are such."""
    files, link = one["files"], one["links"][0]
    if one["crosses_split"]:
        part = dict(zip(files, one["parts"], strict=True))
        link = next((some for some in one["links"] if len({part[name] for name in some["files"]}) > 1), link)
    more = f" (and {len(files) - 2} more)" if len(files) > 2 else ""
    return f"{link['files'][0]} = {link['files'][1]}{': ' if link['change'] else ''}{link['change']}{more}"


def _some(listed: list[str], num: int = EXAMPLES) -> list[str]:
    more = len(listed) - num
    return [*listed[:num], *([f"and {more:,} more"] if more > 0 else [])]


def _images(num: int) -> str:
    return counted(num, "image")


# --- as a page


def check_page(payload: Payload, pictures: Mapping[str, str], *, most_groups: int) -> str:
    """Return the page as html text; `pictures` are data URIs by file.

    Of each section the first `most_groups` groups are shown, and the others counted.
    """
    groups, css = payload["groups"], base_css() + asset("check.css")
    sections = {
        "Photos on both sides of the split": [one for one in groups if one["crosses_split"]],
        "One photo under several classes": [one for one in groups if len(one["classes"]) > 1],
        "Copies within one part": [one for one in groups if not one["crosses_split"] and len(one["classes"]) < 2],
    }
    return (
        environment()
        .get_template("check.html.j2")
        .render(
            **payload,
            sections=[(heading, [_page_group(one) for one in some]) for heading, some in sections.items()],
            pictures=pictures,
            suspects=[(one["file"], suspect_words(one)) for one in payload.get("labels", {}).get("suspects", ())],
            most_groups=most_groups,
            most_files=MAX_FILES,
            css=css,
            style_hash=content_hash(css),
        )
    )


def _page_group(one: Payload) -> dict[str, Any]:
    """Return the group as its section shows it: what changed between copies, and the first files with their parts."""
    changes = list(dict.fromkeys(link["change"] for link in one["links"] if link["change"]))
    return {
        "words": "; ".join([str(one["kind"]), *changes[:3]]),
        "files": shown_files(one),
        "more": len(one["files"]) - MAX_FILES,
    }


def shown_files(one: Payload) -> list[tuple[str, str]]:
    """Return the files of a group that are shown, with their parts: of a large one that leaks, half from each side."""
    files = list(zip(one["files"], one["parts"], strict=True))
    validation = [file for file in files if file[1] == "validation"]
    train = [file for file in files if file[1] != "validation"]
    # Training images come first in a group: its first files alone would not show what leaks.
    room = max(MAX_FILES // 2, MAX_FILES - len(validation))
    return [*train[:room], *validation[: MAX_FILES - min(room, len(train))]]
