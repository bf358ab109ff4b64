"""Metric aliases: the names under which training programs log accuracy, loss and learning rate.

The importers and the recorder read these tables; each adds on top what only its own framework writes. Names are in
lower case, their words joined by underscores.
"""

from __future__ import annotations

import re

# How Keras names the accuracy that a model was compiled with; of several in one log, the first one here counts.
KERAS_ACCURACY = ("accuracy", "acc", "categorical_accuracy", "sparse_categorical_accuracy", "binary_accuracy")
# torchmetrics and timm add theirs. All of them are top-1 accuracy.
ACCURACY = (*KERAS_ACCURACY, "top1", "top1_accuracy", "multiclass_accuracy")
TOP5_ACCURACY = (
    "top5",
    "top5_acc",
    "top5_accuracy",
    "top_k_categorical_accuracy",  # Keras; its k is 5 unless the user says otherwise
    "sparse_top_k_categorical_accuracy",
)
LOSS = "loss"
LEARNING_RATE = ("learning_rate", "lr")

# The words for the part of the data. Longer ones first: a regular expression takes the first that fits.
TRAIN = ("training", "train")
VALIDATION = ("validation", "valid", "val", "eval", "test")


VALIDATION_WORDS = frozenset({*VALIDATION, "evaluation"})
PARTS = VALIDATION_WORDS | frozenset(TRAIN)
# Words of series that count steps instead of epochs, or another accuracy than top-1.
OTHER_WORDS = frozenset({"batch", "iteration", "iterations", "step", "top5", "top", "topk", "k", "5"})


def squeezed(names: tuple[str, ...]) -> frozenset[str]:
    """Return the names without underscores, to compare with names of any punctuation ("top-1 accuracy")."""
    return frozenset(name.replace("_", "") for name in names)


def single_words(names: tuple[str, ...]) -> frozenset[str]:
    """Return the names that are one word, to look for among the words of a longer tag ("epoch_balanced_acc")."""
    return frozenset(name for name in names if "_" not in name)


def metric_of(tag: str, folder: str = "") -> str | None:
    """train_accuracy, val_accuracy, train_loss or val_loss; None for every other series."""
    words = set(re.split(r"[^a-z0-9]+", tag.casefold()))
    what = "accuracy" if words & single_words(ACCURACY) else "loss" if LOSS in words else None
    if what is None or (words & OTHER_WORDS and "1" not in words):
        return None
    if not words & PARTS:
        words = {folder.casefold()}
    return f"{'val' if words & VALIDATION_WORDS else 'train'}_{what}"
