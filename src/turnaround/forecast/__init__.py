"""Observations -> forecasts: value, low, high (80 %) for configurations that were not run. No torch.

Enters: measured runs, rehearsals, data sheets. Leaves: `Forecast`s, with what was pinned and assumed.

    contract.py      what an estimator must do
    scaling.py       the law of N that times follow, its constants, and how far it is off
    step_time.py     step time against processes and hosts
    epoch_time.py    epoch time from whole epochs, where nobody timed the steps
    epochs.py        epochs to a stable accuracy, and that accuracy, against the global batch
    hardware.py      a time carried over to another kind of GPU, from data sheets
    observations.py  the runs of a job -> what the laws learn from
    laws.py          the laws of one job, fitted for one kind of GPU
    turnaround.py    both laws together: time to stable, job time, cost; the best number of GPUs
    question.py      the question and its answer, as values
    predict.py       from the question to the answer
    along.py         the laws along the numbers of workers, for pictures
    next_run.py      the single run that would make the answer surest
    score.py         forecasts that were saved, held against what was measured later
"""
