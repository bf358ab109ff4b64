"""Recorded runs -> numbers and findings. Never draws, never prints, never imports torch.

Enters: `Run`s from the record. Leaves: frozen values that report/ puts into words.

    summary.py    one run in a dozen numbers
    ceilings.py   what limits a training on this machine, from its parts measured alone
    balance.py    does one process hold up the others?
    gpu_kinds.py  which kind of GPU a name means, and its data sheet
    curves.py     learning curves, and the fits that take the noise out of them
    cached.py     judgements of a curve that are made once
    stable.py     the first epoch of the plateau, or of a target, with its interval
    overfit.py    does validation accuracy fall, the loss rise, or training accuracy run away?
    bottleneck.py what holds one run back, and the most that removing it would gain
    compare.py    what differs between two runs besides what was meant to vary
    configurations.py  a job, and each of its configurations with all repeats
    workloads.py  run directories -> jobs -> cases
    speed.py      speed-up and efficiency by one definition
    repeats.py    the curves of repeats as one band, in fewer points
    goals.py      time and cost of each configuration to one goal
    shares.py     the parts of a turnaround and of a step, by configuration
    usage.py      how busy each GPU was over time
    confusion.py  which classes are taken for which
"""
