"""Recorded runs -> numbers and findings. Never draws, never prints, never imports torch.

Enters: `Run`s from the record. Leaves: frozen values that report/ puts into words.

    summary.py    one run in a dozen numbers
    balance.py    does one process hold up the others?
    gpu_kinds.py  which kind of GPU a name means, and its data sheet
    curves.py     learning curves, and the fits that take the noise out of them
    stable.py     the first epoch of the plateau, or of a target, with its interval
    overfit.py    does validation accuracy fall, the loss rise, or training accuracy run away?
"""
