"""Recorded runs -> numbers, kinds and ids. Never draws, never prints, never imports torch.

Enters: `Run`s from the record. Leaves: frozen values that findings/ and reporting/ put into words.

    summary.py    one run in a dozen numbers
    balance.py    does one process hold up the others?
    gpu_kinds.py  which kind of GPU a name means, and its data sheet
    prices.py     what an hour of a GPU costs: the table of the user
    curves.py     learning curves, and their isotonic, unimodal and growth fits, each made once
    stable.py     the first epoch of the plateau, or of a target, with its interval
    overfit.py    does validation accuracy fall, the loss rise, or training accuracy run away?
    bottleneck.py what holds one run back, or a machine, and the most that removing it would gain
    compare.py    what differs between two runs besides what was meant to vary
    configurations.py  a workload, and each of its configurations with all repeats
    workloads.py  run directories -> workloads -> configurations
    speed.py      speed-up and efficiency by one definition
    times_in_doubt.py  times that cannot be compared with others
    repeats.py    the curves of repeats as one band, in fewer points
    pools.py      accuracies that may be compared, and their noise
    guessing.py   is a result better than always answering the largest class?
    goals.py      time and cost of each configuration to one goal
    shares.py     the parts of a turnaround and of a step, by configuration
    progress.py   how far a run is, how fast, how long still, and what is going wrong
    energy.py     watt-hours of a run, from its telemetry
    usage.py      how busy each GPU was over time
    paired.py     two networks on the same images
    confusion.py  which classes are taken for which
"""
