"""Recorded runs -> numbers and findings. Never draws, never prints, never imports torch.

Enters: `Run`s from the record. Leaves: frozen values that report/ puts into words.

    summary.py    one run in a dozen numbers
    balance.py    does one process hold up the others?
"""
