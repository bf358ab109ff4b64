"""The model card beside an exported file: what it was trained on, how, how well it does, and what it is not for.

Everything in it comes from the record. Names are those of somebody's folders: they are text, never markup.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from turnaround.recipes import as_toml
from turnaround.record.class_metrics import completed
from turnaround.record.schema import CalibrationBin, Evaluation
from turnaround.use.formats import FORMATS
from turnaround.use.graph import description
from turnaround.use.trained import Trained
from turnaround.words import percent, points

if TYPE_CHECKING:
    from turnaround.use.export import ExportAgreement

FEW_IMAGES = 30
"""Below it, the accuracy of a class is little more than a guess."""
MAX_CLASSES = 200
BAR_LETTERS = 20
"""Length of a bar of 100 % in the reliability diagram: one letter is 5 points."""


def card(trained: Trained, *, file: str, format_: str, agreement: ExportAgreement) -> str:
    """Return the card as Markdown."""
    parts = (
        f"# {text(trained.name)}",
        _what(trained),
        "## How to use it\n" + _usage(trained, file=file, format_=format_),
        "## How well it does\n" + _accuracy(trained),
        "## What it must not be used for\n" + _limits(trained),
        "## Data\n" + _data(trained),
        f"## Recipe\n{_fenced(as_toml(trained.recipe), 'toml')}",
        "## This file\n"
        f"`{_code(file)}` ({format_}) was held against the trained network after it was written: the same class for "
        f"{agreement.same_top1} of {agreement.num_images} {agreement.pictures}, logits within "
        f"{agreement.largest_difference:.0e}.",
    )
    return "\n\n".join(parts) + "\n"


def text(name: str) -> str:
    """Return a name as Markdown text: nothing in it is markup, and it stays on one line."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in name)
    return re.sub(r"([\\`*_{}\[\]<>()#+!|&~-])", r"\\\1", plain)


def _code(name: str) -> str:
    return "".join(letter if letter.isprintable() and letter != "`" else "?" for letter in name)


def _fenced(content: str, language: str) -> str:
    fence = "`" * max(3, 1 + max((len(ticks) for ticks in re.findall(r"`+", content)), default=0))
    return f"{fence}{language}\n{content.strip()}\n{fence}"


def _what(trained: Trained) -> str:
    model = trained.recipe.model
    start = "random weights" if model.weights == "none" else "ImageNet weights"
    if model.weights not in ("none", "imagenet"):
        start = "weights from a file"
    learns = "every layer was trained" if model.fine_tune else "only the last layer was trained"
    return (
        f"An image classifier with {len(trained.classes)} classes: `{_code(model.name)}`, from {start}, {learns}, "
        f"{trained.epoch} epochs. Trained and recorded by turnaround."
    )


def _usage(trained: Trained, *, file: str, format_: str) -> str:
    size, spec = trained.size_px, description(trained)["input"]
    kind = FORMATS[format_]
    normalises = "It normalises itself" if kind.is_graph else "Normalise yourself, as below"
    lines = (
        f"import json, numpy, PIL.Image, {kind.imports}",
        "",
        'picture = PIL.Image.open("picture.jpg").convert("RGB")',
        f"square = picture.resize(({size}, {size}), PIL.Image.Resampling.BILINEAR)",
        "images = numpy.asarray(square)[None]  # uint8 (N, height, width, 3)",
        *(line.format(file=_code(file)) for line in kind.usage),
        'print(about["classes"][logits[0].argmax()])  # the softmax of the logits are the probabilities',
    )
    return (
        f"Input: `{spec['name']}`, uint8, (N, {size}, {size}, 3), RGB; {spec['resize']}; {spec['orientation']}; "
        f"transparency {spec['transparency']}. {normalises}. "
        f"Output: `logits`, one for each class.\n\n{_fenced(chr(10).join(lines), 'python')}"
    )


def _accuracy(trained: Trained) -> str:
    if trained.run.evaluation is None:
        return "The run has not finished, so it has no final evaluation. Do not rely on this network."
    evaluation = completed(trained.run.evaluation)
    margin = 1.96 * math.sqrt(max(evaluation.top1 * (1 - evaluation.top1), 0.0) / max(evaluation.num_images, 1))
    sentence = (
        f"{percent(evaluation.top1, 1)} of {evaluation.num_images} validation images (95 % interval about "
        f"± {100 * margin:.1f} points, for pictures like these)"
    )
    if evaluation.epoch != trained.epoch:
        sentence += f"; measured after epoch {evaluation.epoch}, this file is from epoch {trained.epoch}"
    if trained.best is not None and trained.best.epoch != evaluation.epoch:
        sentence += (
            f", which had {percent(trained.best.val_accuracy, 1)} and was chosen by that: as the best of many epochs "
            "on these same images it is a little optimistic"
        )
    parts = (f"{sentence}.", _figures(evaluation), _class_table(evaluation), _reliability(evaluation))
    return "\n\n".join(part for part in parts if part)


def _figures(evaluation: Evaluation) -> str:
    """Return the metrics of all classes together, those that were measured, as a table of two columns."""
    macro = "mean over classes (macro)"
    named = {
        f"precision, {macro}": evaluation.macro_precision,
        f"recall, {macro}": evaluation.macro_recall,
        f"F1, {macro}": evaluation.macro_f1,
        "right class among the first five": evaluation.top5,
        "expected calibration error": evaluation.calibration_error,
    }
    rows = [f"| {name} | {percent(value, 1)} |" for name, value in named.items() if value is not None]
    return "\n".join(["| measure | value |", "| --- | ---: |", *rows]) if rows else ""


def _class_table(evaluation: Evaluation) -> str:
    """Return a row for each class; its recall is the share of its images that was recognised."""
    rows = ["| class | images | recall | precision | F1 | most often taken for |"]
    rows += ["| --- | ---: | ---: | ---: | ---: | --- |"]
    for place, one in enumerate(evaluation.per_class[:MAX_CLASSES]):
        few = " (few)" if one.num_images < FEW_IMAGES else ""
        recall = "no images" if one.accuracy is None else percent(one.accuracy)
        shares = f"{recall} | {percent(one.precision)} | {percent(one.f1)}"
        rows.append(f"| {text(one.name)} | {one.num_images}{few} | {shares} | {_taken_for(evaluation, place)} |")
    if len(evaluation.per_class) > MAX_CLASSES:
        rows.append(f"| and {len(evaluation.per_class) - MAX_CLASSES} more: `evaluation.json` of the run | | | | | |")
    note = f"\n\n(few): fewer than {FEW_IMAGES} images, so the share is little more than a guess."
    return "\n".join(rows) + (note if any("(few)" in row for row in rows) else "")


def _reliability(evaluation: Evaluation) -> str:
    """Return the reliability diagram in letters: how often the network was right, by how sure it was."""
    bins = evaluation.calibration
    if not any(one.num_images for one in bins):
        return ""
    rows = [
        _reliability_row(one, f"{percent(place / len(bins))} to {percent((place + 1) / len(bins))}")
        for place, one in enumerate(bins)
        if one.num_images
    ]
    head = f"{'confidence':<16}{'images':>8}  {'mean':>6}{'right':>7}"
    note = f"Each {BAR_LETTERS} letters are 100 %: █ as often right, | as sure. A bar that ends before | is too sure."
    diagram = _fenced("\n".join([head, *rows]), "text")
    return f"How sure it was, and how often it was right then (reliability diagram):\n\n{diagram}\n\n{note}"


def _reliability_row(one: CalibrationBin, span: str) -> str:
    right, sure = (round(BAR_LETTERS * (value or 0.0)) for value in (one.accuracy, one.confidence))
    bar = ("█" * right).ljust(BAR_LETTERS + 1)
    bar = bar[:sure] + "|" + bar[sure + 1 :]
    return f"{span:<16}{one.num_images:>8}  {percent(one.confidence):>6}{percent(one.accuracy):>7}  {bar.rstrip()}"


def _taken_for(evaluation: Evaluation, place: int) -> str:
    """Return the class that images of this one were mistaken for most often."""
    if place >= len(evaluation.confusion):
        return ""
    wrong = [0 if other == place else count for other, count in enumerate(evaluation.confusion[place])]
    most = max(wrong, default=0)
    return f"{text(evaluation.classes[wrong.index(most)])} ({most})" if most else ""


def _limits(trained: Trained) -> str:
    weak = _weak_classes(trained.run.evaluation)
    limits = [
        f"Pictures of anything else. It knows {len(trained.classes)} classes and always names one of them, also for a "
        "picture that shows none.",
        "Pictures of another kind than those it was trained on: another camera, light, background or crop. The figures "
        "above say nothing about them; measure on your own first.",
        f"Its probabilities as certainties. They were not calibrated{_off_by(trained.run.evaluation)}; a threshold "
        "must be chosen on your own pictures.",
        "Decisions about people, health or safety, or any decision that nobody checks.",
        *([f"Telling these apart without a second look: {weak}."] if weak else []),
    ]
    return "\n".join(f"- {limit}" for limit in limits)


def _off_by(evaluation: Evaluation | None) -> str:
    error = None if evaluation is None else evaluation.calibration_error
    return "" if error is None else f" and are {points(error)} off on average (the calibration error above)"


def _weak_classes(evaluation: Evaluation | None) -> str:
    """Return the classes that it recognises in fewer than two of three pictures."""
    if evaluation is None:
        return ""
    weak = [one for one in evaluation.per_class if one.accuracy is not None and one.accuracy < 2 / 3]
    named = ", ".join(f"{text(one.name)} ({percent(one.accuracy or 0)})" for one in weak[:8])
    return named + (f" and {len(weak) - 8} more" if len(weak) > 8 else "")


def _data(trained: Trained) -> str:
    images = trained.run.recipe.get("images")
    facts = images if isinstance(images, dict) else {}
    sentences = f"Source: `{_code(trained.recipe.data.source)}`. "
    if facts:
        split, fingerprint = (_code(str(facts.get(key, "?"))) for key in ("split", "fingerprint"))
        sentences += (
            f"{facts.get('num_train', '?')} training and {facts.get('num_validation', '?')} validation images, "
            f"split by {split}; fingerprint `{fingerprint[:16]}`. "
        )
    return (
        sentences + "Whether they may be used, and whom they show, only their owner knows: ask before you pass this on."
    )
