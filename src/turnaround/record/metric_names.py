"""Metric aliases: the names under which training programs log accuracy, loss and learning rate.

The importers and the recorder read these tables; each adds on top what only its own framework writes. Names are in
lower case, their words joined by underscores.
"""

from __future__ import annotations

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


def squeezed(names: tuple[str, ...]) -> frozenset[str]:
    """Return the names without underscores, to compare with names of any punctuation ("top-1 accuracy")."""
    return frozenset(name.replace("_", "") for name in names)


def single_words(names: tuple[str, ...]) -> frozenset[str]:
    """Return the names that are one word, to look for among the words of a longer tag ("epoch_balanced_acc")."""
    return frozenset(name for name in names if "_" not in name)
