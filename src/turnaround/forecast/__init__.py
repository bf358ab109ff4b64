"""Observations -> forecasts: value, low, high (80 %) for configurations that were not run. No torch.

Enters: measured runs, rehearsals, data sheets. Leaves: `Forecast`s, with what was pinned and assumed.

    contract.py   what an estimator must do
    scaling.py    the law of N that times follow, its constants, and how far it is off
    step_time.py  step time against processes and hosts
    epoch_time.py epoch time from whole epochs, where nobody timed the steps
    epochs.py     epochs to a stable accuracy, and that accuracy, against the global batch
    hardware.py   a time carried over to another kind of GPU, from data sheets
"""
