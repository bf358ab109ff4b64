"""The words for a configuration, a pool and a fact. Enters: their values. Leaves: labels, the same wherever they stand.

configuration   "4 V100 on 2 hosts, batch 64 per worker"
pool            "8 workers (3 runs)", or the label of the only configuration in it
fact            "batch" and "64 per worker"
"""

from __future__ import annotations

from collections.abc import Iterable

from turnaround.analysis.compare import Fact
from turnaround.analysis.configurations import Configuration, ConfigurationRuns
from turnaround.analysis.pools import Pool
from turnaround.words import counted, hardware, setting

Labelled = Configuration | ConfigurationRuns

FACT_NAMES = {
    "data.size_px": "image size",
    "data.holdout": "share held out",
    "data.images": "generated images",
    "data.split_by_photo": "split by photo",
    "data.cache": "cache of pixels",
    "model.name": "network",
    "model.fine_tune": "fine-tuning",
    "model.weights": "weights",
    "training.epochs": "epochs",
    "training.optimizer": "optimizer",
    "training.learning_rate": "learning rate",
    "training.scaling": "scaling of the learning rate",
    "training.schedule": "schedule",
    "training.warmup_epochs": "warm-up epochs",
    "training.weight_decay": "weight decay",
    "training.label_smoothing": "label smoothing",
    "training.loss": "loss",
    "training.precision": "precision asked for",
    "training.compile": "compilation",
    "training.class_weights": "class weights",
    "workers.engine": "engine",
    "images.num_train": "training images",
    "images.num_validation": "validation images",
    "batch": "batch",
    "augment": "augmentation",
    "images": "images",
    "node": "on a node with",
    "sharing": "sharing:",
    "global_batch": "global batch",
    "seed": "seed",
    "split": "split",
    "fingerprint": "images (fingerprint)",
    "gpu": "GPU kind",
    "rehearsal": "rehearsal",
    "share": "shares of the workers",
    "choices.precision": "precision",
    "choices.backbone": "precision of the frozen backbone",
    "choices.pixels": "place of the pixels",
    "cpu": "processor",
    "code_version": "code version",
    "torch_version": "torch version",
    "cold_cache": "cold cache",
    "workers": "workers",
    "processes": "processes",
    "hosts": "hosts",
    "shared_gpu": "shared GPU",
}
"""What sentences and tables call a fact, by its id."""
_SHARED = ("sharing", "shared_gpu")


def label_of(configuration: Labelled) -> str:
    """Return the hardware of a configuration, and its settings where the runs of the job differ in any."""
    return ", ".join(part for part in (hardware_label(configuration), settings_label(configuration)) if part)


def hardware_label(configuration: Labelled) -> str:
    """Return what a configuration ran on: "4 V100 on 2 hosts", "8 workers rehearsed on 1 H200"."""
    rehearsed_on = configuration.processes if configuration.is_rehearsal else None
    return hardware(configuration.workers, configuration.gpu, hosts=configuration.hosts, rehearsed_on=rehearsed_on)


def hardware_labels(configurations: Iterable[Labelled]) -> list[str]:
    """Return each label once."""
    return list(dict.fromkeys(hardware_label(configuration) for configuration in configurations))


def settings_label(configuration: Labelled) -> str:
    """Return the settings: "batch 64 per worker, precision bf16"; empty where the runs differ in nothing else."""
    return facts_label(configuration.settings)


def pool_label(pool: Pool) -> str:
    """Return the label of the only configuration of a pool, else its workers and how many runs it has."""
    if len(pool.configurations) == 1:
        return label_of(pool.configurations[0])
    return f"{pool.workers} workers ({len(pool.accuracies)} runs)"


def facts_label(facts: Iterable[Fact]) -> str:
    """Return each fact with its value, joined."""
    return ", ".join(f"{fact_name(fact.id)} {fact_text(fact)}" for fact in facts)


def fact_name(id_: str) -> str:
    """Return what people call a fact."""
    return FACT_NAMES[id_]


def fact_text(fact: Fact) -> str:
    """Return the value of a fact with its unit; of a shared GPU how many processes are on how many."""
    if fact.id in _SHARED and isinstance(fact.value, tuple):
        count = {name: int(value) for name, value in fact.value}
        return f"{count['processes']} processes on {counted(count['gpus'], 'GPU')}"
    return setting(fact.value, fact.unit)
