"""The page: one html file for runs or a study, and the same page live. No arithmetic beyond rounding, no torch.

Enters: a survey, its findings, forecasts. Leaves: named blocks, and the html text made of them.

    build.py          run directories -> what the page tells -> the file
    examples.py       pictures of the classes that are confused most
    blocks.py         what is on the page, piece by piece, in the order in which it is read
    answer.py         the answer in one sentence
    questions.py      what everybody asks of a study, each answered or told what is missing
    tables.py         the comparison of a job, the leaderboard of several, forecasts; with keys to sort by
    runs.py           each run: recipe, machine, and in what it differs from the others
    templates.py      values -> html, escaped
    render.py         blocks -> one self-contained html text, and what may run in it
    figures.py        which pictures a job has, in which order
    fig_common.py     one figure as plotly takes it, and what all figures share
    fig_curves.py     accuracy and loss by epoch, and the accuracies at the end
    fig_time.py       time and cost of each configuration to one goal
    fig_scaling.py    seconds an epoch, speed-up, efficiency and time to stable against workers
    fig_laws.py       measured points, ideal lines, laws with bands, forecasts set apart
    fig_epochs.py     epochs to stable against workers
    fig_inside.py     the parts of the turnaround, and of a step
    fig_gpus.py       usage of every GPU over time
    fig_training.py   learning rate and gradient noise scale
    fig_classes.py    the confusion matrix and the most confused classes

`figures.figures_of(job: Workload, forecasters: Sequence[Forecaster] = (), *, price: float | None = None)` gives
`tuple[Figure, ...]`. `forecasters` are those of the job by `forecast.sweep.forecasters_of(job, price=None)`, one for
each kind of GPU that was timed; with none the pictures have measured values only. `price` is money for one GPU-hour;
without it costs are GPU-hours. A picture without data is left out. `figures.SECTIONS` has the sections in order, with
headings. Titles, captions and alt texts are plain text, to be escaped; texts inside traces are escaped for plotly
already. `analysis.confusion.best_evaluated(job)` and `confused_pairs` say which run and which classes the last
section shows.
"""
