"""The values in a run directory: what each file holds, field by field, with its unit.

The way to JSON and back is coding.py's; docs/record-format.md says the same for other programs.
"""

import dataclasses
from datetime import UTC, datetime
from typing import Literal, get_args

from turnaround.record.coding import FORMAT_VERSION, KEY, from_json, to_json

__all__ = [
    "DISJOINT_TIME_PARTS",
    "FORMAT_VERSION",
    "METRICS",
    "BestEpoch",
    "CalibrationBin",
    "ClassResult",
    "EnergySource",
    "EpochRecord",
    "Evaluation",
    "GpuSample",
    "Imported",
    "JobStatus",
    "Metric",
    "ShareChange",
    "Span",
    "State",
    "Status",
    "TelemetrySample",
    "TimePart",
    "from_json",
    "to_json",
    "utc_now",
]

EnergySource = Literal["counter", "watts"]
"""counter: the GPU's own energy counter; watts: its power, sampled and integrated over time."""

State = Literal["queued", "running", "finished", "failed", "diverged", "interrupted"]

TimePart = Literal[
    # The first seven do not overlap; together they are the program's time less a small rest.
    "start_up",  # program start to first step, without decode
    "decode",  # waiting for images to reach the pixel cache; 0 when they were there
    "training_cold",  # steps of the first epoch after a start: compilation, cold caches
    "training_steady",  # steps of the other epochs
    "evaluation",
    "checkpoint",  # what training waited for it
    "lost",  # done after the checkpoint that a resume went on from
    "training",  # training_cold + training_steady
    "pause",  # evaluation + checkpoint: the training clock stands still
    "program",  # from process start to end
    "import",  # loading torch and the training's own code, within start_up
    "preloaded",  # the same, done by a fork server before the program began; in no other part
]
DISJOINT_TIME_PARTS: tuple[TimePart, ...] = get_args(TimePart)[:7]


@dataclasses.dataclass(frozen=True)
class Metric:
    """A value that an epoch measures, as the recorder, viewers and figures name it."""

    label: str
    """For people: "validation accuracy"."""
    unit: str
    """share (0 to 1), s, images/s ...; empty for a plain number."""
    tag: str
    """Under which name TensorBoard draws it. Training and validation have one heading, so that they stand next to each
    other."""


def _metric(label: str, unit: str, tag: str) -> dict[str, Metric]:
    """Return the metadata that makes a field of EpochRecord a metric."""
    return {"metric": Metric(label, unit, tag)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochRecord:
    """One line of epochs.jsonl. Accuracies are fractions, 0 to 1; losses are means per image.

    This is the only list of what an epoch measures; METRICS has its metrics by name.
    """

    epoch: int
    """Counted from 1."""
    train_loss: float = dataclasses.field(metadata=_metric("training loss", "mean of an image", "loss/train"))
    """Running mean over the epoch's steps, under augmentation and with the weights of the moment."""
    train_accuracy: float = dataclasses.field(metadata=_metric("training accuracy", "share", "accuracy/train"))
    """Running, like train_loss; of mixed images (mixup, cutmix) the label with the larger share is the right answer."""
    val_loss: float = dataclasses.field(metadata=_metric("validation loss", "mean of an image", "loss/validation"))
    """Over the whole validation set, each image once."""
    val_accuracy: float = dataclasses.field(metadata=_metric("validation accuracy", "share", "accuracy/validation"))
    """Top-1, over the whole validation set, each image once."""
    epoch_time_s: float = dataclasses.field(metadata=_metric("epoch time", "s", "time/seconds an epoch"))
    """Training steps only; throughput is computed from this."""
    images_per_s: float = dataclasses.field(metadata=_metric("throughput", "images/s", "time/images a second"))
    """images / epoch_time_s, over all workers."""
    learning_rate: float = dataclasses.field(metadata=_metric("learning rate", "", "learning_rate"))
    """At the end of the epoch."""
    steps: int | None = None
    """Updates in this epoch."""
    images: int | None = None
    """Training images in this epoch, over all workers."""
    train_eval_loss: float | None = dataclasses.field(
        default=None, metadata=_metric("training loss, evaluated", "mean of an image", "loss/train, evaluated")
    )
    """On a fixed subset of the training images, in evaluation mode, without augmentation."""
    train_eval_accuracy: float | None = dataclasses.field(
        default=None, metadata=_metric("training accuracy, evaluated", "share", "accuracy/train, evaluated")
    )
    """On the same subset: the one to hold against val_accuracy when asking for overfitting."""
    val_top5_accuracy: float | None = dataclasses.field(
        default=None, metadata=_metric("validation accuracy, top 5", "share", "accuracy/validation, top 5")
    )
    """None with fewer than six classes, where it would say nothing."""
    evaluation_time_s: float | None = dataclasses.field(
        default=None, metadata=_metric("evaluation time", "s", "time/seconds an evaluation")
    )
    """Both evaluations after this epoch's steps."""
    segment: int = 1
    """1 for the first start, one more at each resume."""
    energy_wh: float | None = dataclasses.field(default=None, metadata=_metric("energy", "Wh", "energy/Wh an epoch"))
    """Energy of the GPUs of the run, each once, from the end of the epoch before (of the first: from the first step) to
    the end of the evaluation; None where a GPU does not tell, or there is none."""
    noise_scale: float | None = dataclasses.field(
        default=None, metadata=_metric("noise scale", "images a step", "noise_scale")
    )
    """Gradient noise scale, in images, over the last tenth of the training, or 20 measurements where that is longer."""
    noise_scale_low: float | None = None
    """Lower end of its 90 % interval; may be known where the noise scale itself is not."""
    noise_scale_high: float | None = None
    """Upper end; None when there is no estimate, or no upper bound."""
    noise_scale_reason: str | None = None
    """Why there is no noise scale, or no upper end of it."""
    shares: list[int] | None = None
    """Workers of each process in this epoch, by rank, at its end; None where they were shared out equally."""


METRICS: dict[str, Metric] = {
    field.name: field.metadata["metric"] for field in dataclasses.fields(EpochRecord) if "metric" in field.metadata
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BestEpoch:
    """The best epoch so far, in status.json and evaluation.json. The best of many epochs is an optimistic figure."""

    epoch: int
    """Counted from 1."""
    val_accuracy: float
    """Its validation accuracy."""
    val_loss: float
    """Its validation loss."""
    measure: str = "val_accuracy, of equal ones val_loss, of equal ones the earlier epoch"
    """The measure by which it is the best."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobStatus:
    """The job of a cluster in status.json, as it was when somebody last asked."""

    job_id: str
    """The number as the cluster shows it; the last one of a run that was submitted again."""
    state: str = "PENDING"
    """The cluster's own word: of Slurm PENDING, RUNNING, COMPLETED, FAILED, CANCELLED, TIMEOUT, NODE_FAIL ..."""
    reason: str | None = None
    """Why it waits or has failed, in the cluster's words."""
    exit_code: int | None = None
    """Exit status of the batch script once it has ended; a signal n is -n."""
    starts: int = 0
    """Number of starts of this job: 1 plus its requeues."""
    requeued_s: float = 0.0
    """In the queue again after the first start, over all requeues."""
    hosts: list[str] = dataclasses.field(default_factory=list)
    """Hosts of the last start."""
    gpu: str | None = None
    """The kind of GPU that was asked for, as the cluster calls it."""
    estimated_wait_s: float | None = None
    """Seconds in the queue that the cluster expected just before the submission; None where it did not tell."""
    cluster: str = "slurm"
    """The kind of cluster: the name after --on."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShareChange:
    """The workers were shared out anew among the processes, by their speed (`--share auto`): in status.json."""

    after_epoch: int
    """The epoch at whose end it was decided; counted from 1."""
    before: list[int]
    """Workers of each process until then, by rank."""
    shares: list[int]
    """Workers of each process from then on."""
    seconds_per_worker: list[float]
    """What each process took for one of its workers: the median of sampled steps, up to its last gradient."""
    predicted_gain: float
    """Share of the computing part of a step that this should save, 0 to 1."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Status:
    """status.json: where the run stands. Instants are ISO-8601 UTC with offset; durations are monotonic."""

    state: State
    """queued, running, finished, failed, diverged or interrupted."""
    cause: str | None = None
    """Why it failed, diverged or was interrupted, in a sentence."""
    submitted_at: str | None = None
    """The instant of the user's request; a requeue does not change it."""
    started_at: str | None = None
    """Start of the first program; of a job, start of its script."""
    first_step_at: str | None = None
    """End of the first step of the first segment."""
    ended_at: str | None = None
    """End of the last program; None while it runs."""
    epochs_done: int = 0
    """Whole epochs behind the last saved state."""
    epochs_planned: int | None = None
    """Epochs that the training will have where they are not those of its recipe: a time limit, an early stop."""
    stopped_early: str | None = None
    """Why the training has fewer epochs than its recipe asks for, in a sentence; None where it has them all."""
    best: BestEpoch | None = None
    """The best epoch so far; its weights are in `best/` as soon as a checkpoint is written."""
    segments: int = 1
    """Starts so far: 1 plus the number of resumes."""
    time_s: dict[TimePart, float] = dataclasses.field(default_factory=dict)
    """Seconds by part, over all segments."""
    restarts: list[str] = dataclasses.field(default_factory=list)
    """Why it was started again by itself, one cause for each time."""
    saves: int | None = None
    """Checkpoints that the training has waited for, over all starts; None in records from before they were counted."""
    share_changes: list[ShareChange] = dataclasses.field(default_factory=list)
    """Every time that the workers were shared out anew, oldest first; those of epochs that come again are left out."""
    not_saved: str | None = None
    """Why the newest checkpoint could not be written, while the training goes on without it."""
    job: JobStatus | None = dataclasses.field(default=None, metadata={KEY: "slurm"})
    """The job of a cluster that the run is, if it is one; the key in the file is that of the first kind of cluster."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassResult:
    """One class in evaluation.json."""

    name: str
    """The class folder's name."""
    num_images: int
    """Validation images of this class; may be 0."""
    accuracy: float | None
    """Share of them that was recognised; None when there are none."""
    num_predicted: int | None = None
    """Validation images that were taken for this class, rightly or not."""
    precision: float | None = None
    """Share of num_predicted that was right; None when there are none."""
    recall: float | None = None
    """The same as accuracy, under the name that it has beside precision."""
    f1: float | None = None
    """2 right / (num_images + num_predicted); None without images."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CalibrationBin:
    """One of 15 bins of equal width in evaluation.json: the images whose predicted class had this much confidence."""

    num_images: int
    """Images whose largest softmax output lies above bin / 15 and at most at (bin + 1) / 15, bins counted from 0."""
    confidence: float | None = None
    """Mean of that output over them; None without images."""
    accuracy: float | None = None
    """Share of them that was right; None without images."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mistake:
    """One validation image in evaluation.json that was taken for another class."""

    file: str
    """Its path within the folder of images."""
    true: str
    """The name of its class."""
    predicted: str
    """The name of the class that it was taken for."""
    confidence: float
    """The largest softmax output: how sure the network was."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """evaluation.json: the exact evaluation on the validation set after the last epoch."""

    epoch: int
    """The epoch whose weights were evaluated."""
    num_images: int
    """Validation images, each counted once."""
    top1: float
    """Share of images whose class came first."""
    top5: float | None
    """Share of images whose class was among the first five; None with fewer than six classes."""
    loss: float
    """Mean per image."""
    classes: list[str]
    """Class names in the network's order: the row and column order of confusion."""
    per_class: list[ClassResult]
    """One entry for each class, in the same order."""
    confusion: list[list[int]]
    """confusion[true class][predicted class] = number of images."""
    macro_precision: float | None = None
    """Mean of the precision over the classes that have images; a class that was never predicted counts as 0."""
    macro_recall: float | None = None
    """Mean of the recall over the same classes: the balanced accuracy."""
    macro_f1: float | None = None
    """Mean of F1 over the same classes."""
    calibration_error: float | None = None
    """Expected calibration error: mean over images of |accuracy - confidence| of their bin, as a fraction."""
    calibration: list[CalibrationBin] = dataclasses.field(default_factory=list)
    """The bins it was computed from, least confident first; empty where nothing was binned."""
    best: BestEpoch | None = None
    """The best epoch of the run, which need not be the one that was evaluated here: the last."""
    mistakes: list[Mistake] = dataclasses.field(default_factory=list)
    """The mistakes of the highest confidence, the surest first; empty also in records from before they were kept."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Imported:
    """imported.json: what somebody else's table or log states about a run that turnaround did not train.

    Its presence marks a run as imported: these numbers were told, not measured. None is "it does not say".
    """

    source: str
    """The file it came from, without its folders."""
    format: str = dataclasses.field(metadata={KEY: "source_format"})
    """The name of a row of `importers/read.py`: table, keras, ...; in the file, `format` is the version."""
    epochs: int | None = None
    """Epochs that were run."""
    job_time_s: float | None = None
    """Seconds from submit to finish, or as much of it as the source saw."""
    epoch_time_s: float | None = None
    """A typical epoch; whether evaluation is in it, only its author knows."""
    images_per_s: float | None = None
    """Over all workers."""
    epochs_to_stable: float | None = None
    """The author's own estimate: by eye, without an interval."""
    train_accuracy: float | None = None
    """At the end; mostly the running one, under augmentation."""
    val_accuracy: float | None = None
    """At the end."""
    missing: list[str] = dataclasses.field(default_factory=list)
    """Facts that the source leaves open, by the name of its column."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Span:
    """One line of spans-RANK.jsonl: the parts of one (sampled) step on one process."""

    step: int
    """Update number since the beginning of the run, from 1."""
    epoch: int
    """The epoch it belongs to."""
    wait_s: float
    """Waiting for the next batch."""
    copy_s: float
    """Moving the batch to the device, and augmenting it."""
    compute_s: float
    """Forward and backward."""
    reduce_s: float
    """Averaging gradients over processes, as far as it is not hidden behind compute_s."""
    update_s: float
    """The optimizer."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuSample:
    """One GPU at one instant; None is "this GPU does not tell"."""

    index: int
    """NVML's number of the GPU on its host."""
    name: str
    """The GPU's name in the driver."""
    utilisation_percent: float | None = None
    """Share of the last sampling period in which any kernel ran."""
    memory_used_gib: float | None = None
    """By all processes on this GPU."""
    power_w: float | None = None
    """Board power."""
    energy_j: float | None = None
    """Energy since this segment's telemetry began, by all that computed on this GPU."""
    energy_source: EnergySource | None = None
    """What `energy_j` was read from."""
    energy_resets: int = 0
    """How often the counter went back in this segment, so that a moment before is not counted."""
    compute_processes: int | None = None
    """Programs that compute on this GPU, of this run and of others."""
    run_processes: int | None = None
    """Processes of this run that compute on it: 0 on a GPU that the run leaves alone; None before they have said so."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TelemetrySample:
    """One line of telemetry-HOST.jsonl."""

    time_s: float
    """Seconds since this segment's telemetry began (monotonic): falls back to 0 after a resume."""
    at: str
    """The same instant by the host's clock, ISO-8601 UTC; never subtract those of two hosts."""
    cpu_percent: float | None = None
    """All cores of the host together: 0 to 100."""
    memory_used_gib: float | None = None
    """Memory of the host in use, by all processes."""
    process_rss_gib: float | None = None
    """Resident memory of the process that records."""
    gpus: list[GpuSample] = dataclasses.field(default_factory=list)
    """The GPUs this process may use."""


def utc_now() -> str:
    """Return the present instant as every file writes it: ISO-8601, UTC, with offset."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
