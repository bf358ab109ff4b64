"""One file per verb. Nothing here imports torch: `turnaround --help` answers at once, on a login node too.

Enters: what a user types. Leaves: text on stdout and stderr, and an exit code of errors.py.

    demo.py       the whole story on generated fruit
    check.py      what is wrong with a folder of images, before you train on it
    train.py      one run, from a recipe or a folder of images
    study.py      many configurations of one recipe: run what is missing, compare, forecast
    resume.py     go on with a run that was stopped
    verify.py     is every file of a run, a study or a cache what was written?
    import_.py    runs that turnaround did not train become run directories
    report.py     what recorded runs say, side by side
    watch.py      the page of runs while they train
    estimate.py   time, memory and cost from zero runs
    predict.py    what another number of GPUs, or another kind, would do
    classify.py   what a trained network says of pictures
    evaluate.py   a trained network on other images with known labels
    export.py     a trained network as a file for other programs
    serve.py      a trained network behind a page and an HTTP address
    bench.py      how fast could training be on this machine, and what is in its way?
    models.py     the names that model.name takes
    prices.py     the user's prices of GPUs
    recipes.py    list, show and copy the built-in recipes
    doctor.py     what this machine has, and whether training can work on it
    options.py    flags that need more than a line
    verbs.py      what the help pages have in common

classify, evaluate, export and serve reach the GPU side, inside a function.
"""

from __future__ import annotations

import sys

import typer

from turnaround.cli.bench import bench
from turnaround.cli.check import check
from turnaround.cli.classify import classify
from turnaround.cli.demo import demo
from turnaround.cli.doctor import doctor
from turnaround.cli.estimate import estimate
from turnaround.cli.evaluate import evaluate
from turnaround.cli.export import export
from turnaround.cli.import_ import import_
from turnaround.cli.models import models
from turnaround.cli.predict import predict
from turnaround.cli.prices import prices_app
from turnaround.cli.recipes import recipes_app
from turnaround.cli.report import report
from turnaround.cli.resume import resume
from turnaround.cli.serve import serve
from turnaround.cli.study import study
from turnaround.cli.train import train
from turnaround.cli.verbs import Verb, VerbGroup
from turnaround.cli.verify import verify
from turnaround.cli.watch import watch
from turnaround.errors import TurnaroundError

app = typer.Typer(
    name="turnaround",
    cls=VerbGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    rich_markup_mode="rich",
    help="Train image classifiers on 1..N workers, record every run, and learn what more GPUs would do.",
)
VERBS = (
    demo,
    check,
    train,
    resume,
    study,
    verify,
    import_,
    report,
    watch,
    estimate,
    predict,
    classify,
    evaluate,
    export,
    serve,
    bench,
    models,
    doctor,
)
for verb in VERBS:
    app.command(verb.__name__.rstrip("_"), cls=Verb)(verb)
app.add_typer(prices_app, name="prices")
app.add_typer(recipes_app, name="recipes")


@app.callback(invoke_without_command=True)
def version_option(
    version: bool = typer.Option(False, "--version", help="Print the version and end.", is_eager=True),
) -> None:
    if version:
        from turnaround.record.machine import installed_version

        typer.echo(f"turnaround {installed_version()}")
        raise typer.Exit


def main() -> None:
    """The console script: an error of ours is one message and an exit code, never a stack trace."""
    try:
        app()
    except TurnaroundError as error:
        from turnaround.words import harmless

        typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
        typer.echo(harmless(str(error)), err=True)  # it may quote what others have written
        sys.exit(error.exit_code)
