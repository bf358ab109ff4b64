"""`turnaround predict`: what would another number of GPUs, or another kind, do?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnaround.cli.options import LOCAL, Account, ClusterFlags, More, Partition, Time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnaround.analysis.workloads import Survey
    from turnaround.forecast.predict import Forecaster
    from turnaround.forecast.question import Prediction, Question
    from turnaround.study.estimate import AskedCluster

MAX_SINGLE_STEPS = 128
"""A longer range is looked at in powers of two."""
MAX_WORKERS = 100_000


Directories = Annotated[list[Path], typer.Argument(metavar="DIR", help="Runs, or folders of runs.")]
Workers = Annotated[str, typer.Option(help="How many workers, one on each GPU: 16, a list 1,2,4,8 or a range 1-32.")]
Kind = Annotated[str | None, typer.Option(help="Which kind: V100, A100, ... Default: the one measured.")]
Hosts = Annotated[int | None, typer.Option(help="On how many hosts. Default: as in the runs.")]
GpusPerHost = Annotated[int | None, typer.Option(help="GPUs of a host. Default: as in the runs.")]
On = Annotated[
    str, typer.Option("--on", metavar="CLUSTER", help="Ask slurm when it would start, and for the GPUs of a host.")
]
Price = Annotated[float | None, typer.Option(help="Of one GPU for one hour, in any currency.")]
Prices = Annotated[
    Path | None,
    typer.Option("--prices", metavar="FILE", help="A price table, CSV or TOML. Default: turnaround prices."),
]
Job = Annotated[str | None, typer.Option("--job", metavar="NAME", help="Which job, by its name or a part of it.")]
Target = Annotated[float | None, typer.Option(help="A validation accuracy to reach, 0 to 1.")]
Batch = Annotated[int | None, typer.Option(help="Images of a worker in each step. Default: as in the runs.")]
Precision = Annotated[str | None, typer.Option(help="amp, fp16, bf16, tf32 or fp32. Default: as in the runs.")]
InputLimit = Annotated[float | None, typer.Option(help="Images/s that the input path of one host gives at most.")]
Network = Annotated[
    float | None, typer.Option(help="GB/s that an all-reduce gets between hosts. Default: not known, maybe slow.")
]
Interruptions = Annotated[
    str | None,
    typer.Option("--interruptions", metavar="RATE", help="How often a host is taken away (spot): 0.5/h, 3/day."),
]
Electricity = Annotated[float | None, typer.Option(help="Price of one kWh, in any currency.")]
Grid = Annotated[float | None, typer.Option(help="kg of CO2e emitted for one kWh of your electricity.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the forecast as JSON on stdout.")]
Save = Annotated[
    bool, typer.Option("--save", help="Keep the forecast in DIR/forecasts.jsonl, to be scored by later runs.")
]


def predict(
    directories: Directories,
    workers: Workers,
    gpu: Kind = None,
    hosts: Hosts = None,
    gpus_per_host: GpusPerHost = None,
    on: On = LOCAL,
    partition: Partition = None,
    account: Account = None,
    time: Time = None,
    slurm: More = None,
    price: Price = None,
    prices: Prices = None,
    job: Job = None,
    target: Target = None,
    batch_per_worker: Batch = None,
    precision: Precision = None,
    input_limit: InputLimit = None,
    network: Network = None,
    interruptions: Interruptions = None,
    electricity: Electricity = None,
    grid: Grid = None,
    json_: AsJson = False,
    save: Save = False,
) -> None:
    """Forecast time, accuracy and cost of what nobody has run.

    [bold]turnaround predict runs/ --workers 16[/bold]                 one answer
    [bold]turnaround predict runs/ --workers 1-32 --price 2.48[/bold]  fastest and cheapest
    [bold]turnaround predict runs/ --workers 16 --gpu A100[/bold]      of another kind
    [bold]turnaround predict runs/ --workers 1-32 --on slurm[/bold]    with the queue
    [bold]turnaround predict runs/ --workers 8 --interruptions 0.5/h[/bold]  on spot machines
    """
    from turnaround.analysis.prices import price_table
    from turnaround.forecast.predict import fit_forecaster
    from turnaround.forecast.question import Question
    from turnaround.forecast.score import runs_in
    from turnaround.interruptions import rate_per_h

    counts = asked_workers(workers)
    question = Question(
        workers=counts[-1],
        gpu=gpu,
        hosts=hosts,
        gpus_per_host=gpus_per_host,
        price=price,
        prices=price_table(prices).prices,
        job=job,
        target=target,
        batch_per_worker=batch_per_worker,
        precision=precision,
        input_limit=input_limit,
        network=network,
        interruptions_per_h=rate_per_h(interruptions, flag="--interruptions") if interruptions is not None else None,
        electricity=electricity,
        grid=grid,
    )
    flags = ClusterFlags(on=on, partition=partition, account=account, time=time, more=tuple(slurm or ()))
    found = runs_in(directories)
    forecaster = fit_forecaster(found, question)  # before a cluster is asked: runs that teach nothing end it here
    answered = _answered(forecaster, _queue(flags), counts, found)
    if json_:
        _print_json(answered.predictions)
    else:
        _print_text(answered.predictions, answered.forecaster.question)
        _print_scores(directories, found)
    if save:
        _save(directories[0], answered, counts, found)


def _queue(flags: ClusterFlags) -> AskedCluster | None:
    """Return the cluster to ask, or why it does not answer; None for this machine, which has no queue."""
    from turnaround.study.estimate import AskedCluster

    cluster = flags.cluster()
    return None if cluster is None else AskedCluster.ask(cluster, flags.wishes)


@dataclass(frozen=True, kw_only=True)
class _Answered:
    """The forecaster as the cluster places its workers, and its predictions, with the queue if there is one."""

    forecaster: Forecaster
    predictions: list[Prediction]


def _answered(forecaster: Forecaster, asked: AskedCluster | None, counts: Sequence[int], found: Survey) -> _Answered:
    """A cluster that does not answer is named, and the forecast stands without it."""
    from turnaround.launch.clusters.contract import NoAnswerError

    queue = asked.queue if asked else None
    forecaster = queue.placed(forecaster) if queue else forecaster
    _tell(found)
    predictions, why_silent = _predictions(forecaster, counts), asked.why_silent if asked else None
    if queue is not None:
        try:
            predictions = queue.with_queue(predictions, found)
        except NoAnswerError as error:  # a job that would be refused is an error all the same
            why_silent = str(error)
    if why_silent is not None:
        _print_silence(why_silent)
    return _Answered(forecaster=forecaster, predictions=predictions)


def _predictions(forecaster: Forecaster, counts: Sequence[int]) -> list[Prediction]:
    if len(counts) == 1:
        return [_with_next_run(forecaster, counts[0])]
    return [forecaster.predict(count) for count in _looked_at(counts, forecaster)]


def asked_workers(text: str) -> list[int]:
    """ "16", "1,2,4" or "1-32" as numbers, ascending."""
    from turnaround.errors import InputError

    numbers: set[int] = set()
    for part in text.split(","):
        # [0-9], not \d: that takes digits of any script. Seven of them are more than MAX_WORKERS, and quick to read.
        ends = re.fullmatch(r"\s*([0-9]{1,7})\s*(?:-\s*([0-9]{1,7})\s*)?", part)
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (0, 0)
        if not 1 <= first <= last <= MAX_WORKERS:
            raise InputError(
                f"--workers takes whole numbers from 1 to {MAX_WORKERS:,}: 16, a list 1,2,4 or a range 1-32. "
                f"Received: {text!r}."
            )
        numbers |= set(_steps(first, last))
    return sorted(numbers)


def _steps(first: int, last: int) -> list[int]:
    if last - first < MAX_SINGLE_STEPS:
        return list(range(first, last + 1))
    return sorted({first, last} | {2**k for k in range(last.bit_length()) if first <= 2**k <= last})


def _looked_at(counts: Sequence[int], forecaster: Forecaster) -> list[int]:
    """Return what was asked for, and the measured counts in between."""
    measured = forecaster.laws.times.counts if forecaster.laws.times else []
    return sorted(set(counts) | {n for n in measured if counts[0] <= n <= counts[-1] and len(counts) > 8})


def _with_next_run(forecaster: Forecaster, workers: int) -> Prediction:
    from dataclasses import replace

    from turnaround.forecast.next_run import next_run

    prediction = forecaster.predict(workers)
    return replace(prediction, next_run=next_run(forecaster, prediction))


def _tell(found: Survey) -> None:
    """Print what could not be read on stderr: stdout may go into a pipe."""
    from rich.text import Text

    from turnaround.findings.runs import left_out_text
    from turnaround.reporting.terminal import err
    from turnaround.reporting.text_layout import clean

    for item in found.left_out:
        err().print(Text(clean(f"left out: {item.directory}: {left_out_text(item)}"), style="yellow"))
    if found.running:
        err().print(Text(clean(f"still running, with what they have: {', '.join(found.running)}"), style="yellow"))


def _print_silence(why: str) -> None:
    """Say on stderr that the cluster has not answered: stdout has the forecast, which may go into a pipe."""
    from rich.text import Text

    from turnaround.findings.queue import silence_text
    from turnaround.reporting.terminal import err
    from turnaround.reporting.text_layout import clean

    err().print(Text(clean(silence_text(why)), style="yellow"))


def _print_json(predictions: Sequence[Prediction]) -> None:
    from dataclasses import asdict

    from turnaround.findings.forecasts import Answer
    from turnaround.forecast.ranking import best_of_range
    from turnaround.reporting.terminal import print_json

    answers = [Answer.of(prediction).as_json() for prediction in predictions]
    if len(answers) == 1:
        print_json(answers[0])
        return
    best = best_of_range(predictions)
    print_json({"predictions": answers, "best": asdict(best) if best else None})


def _print_text(predictions: Sequence[Prediction], question: Question) -> None:
    from rich.text import Text

    from turnaround.reporting.forecast_text import answer_lines
    from turnaround.reporting.range_text import range_lines
    from turnaround.reporting.terminal import out, print_lines

    console = out()
    width = min(console.width, 100)
    if len(predictions) == 1:
        lines = answer_lines(predictions[0], question, width)
    else:
        lines = range_lines(predictions, question, width)
    print_lines(console, (Text(line, style=style) for line, style in lines))


def _print_scores(directories: Sequence[Path], found: Survey) -> None:
    """Print how good the saved forecasts and estimates have been, as far as runs have come since."""
    from rich.text import Text

    from turnaround.findings.forecasts import track_record_text
    from turnaround.forecast.score import saved_in, scored
    from turnaround.reporting.estimate_text import score_lines
    from turnaround.reporting.terminal import out, print_lines

    scores = scored([line for directory in directories for line in saved_in(directory)], found)
    if (text := track_record_text([score for score in scores if not score.is_estimate])) is not None:
        out().print(Text(f"\n{text}"))
    print_lines(out(), score_lines(scores, min(out().width, 100)))


def _save(folder: Path, answered: _Answered, counts: Sequence[int], found: Survey) -> None:
    """Keep the forecasts of the counts that were asked for."""
    from dataclasses import replace

    from rich.text import Text

    from turnaround.findings.forecasts import Answer
    from turnaround.forecast.score import save
    from turnaround.reporting.terminal import err

    question = answered.forecaster.question
    for prediction in (p for p in answered.predictions if p.workers in counts):
        path = save(folder, replace(question, workers=prediction.workers), Answer.of(prediction).as_json(), found)
    err().print(Text(f"saved in {path}: later runs of the same configuration will score it"))
