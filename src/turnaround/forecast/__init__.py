"""Observations -> forecasts: value, low, high (80 %) for configurations that were not run. No torch.

Enters: measured runs, rehearsals, data sheets. Leaves: `Interval`s, and what must be said beside them as kinds with
their figures; turnaround.findings.forecasts has the words.

    interval.py      a value with its 80 % interval, and the arithmetic of such values
    estimator.py     what every law can be asked
    remarks.py       what was pinned, excluded, assumed, missing: kinds and figures
    scaling.py       the law of N that times follow, its constants, and how far it is off
    trend.py         how times go on beyond the largest count, on either side of a host boundary, and how surely
    doubts.py        measured times that hardly can be what they are called
    time_law.py      the base of the laws of time: fit, predict, hosts, doubts
    step_time.py     that law for steps that were timed
    epoch_time.py    that law for whole epochs, where nobody timed the steps
    epochs.py        epochs to a stable accuracy, and that accuracy, against the global batch
    hardware.py      a time carried over to another kind of GPU, from data sheets
    observations.py  the runs of a job -> what the laws learn from
    laws.py          the laws of one job, fitted for one kind of GPU; the registry of laws of time
    turnaround.py    both laws together: time to stable, job time, cost
    queue.py         how long a job waits in a cluster's queue, and when its result is there
    energy.py        the energy of that time, from the power that runs measured
    preemption.py    the time and the money that interruptions cost; how often to save
    question.py      the question and its answer, as values
    caveats.py       what a reader must mind in one forecast
    predict.py       from the question to the answer
    ranking.py       the best numbers of workers of a range, by time and by cost
    sweep.py         the laws over a range of workers, for pictures
    proposal.py      strong and weak scaling, accuracy at scale and the request of a compute-time proposal
    next_run.py      the single run that would make the answer surest
    prior.py         time, memory and epochs of a network that nobody has trained yet
    estimate.py      an answer from zero runs, from those
    narrowing.py     the one run that would narrow that answer most
    score.py         forecasts that were saved, held against what was measured later
"""
