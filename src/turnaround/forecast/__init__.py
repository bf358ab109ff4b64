"""Observations -> forecasts: value, low, high (80 %) for configurations that were not run. No torch.

Enters: measured runs, rehearsals, data sheets. Leaves: `Forecast`s, with what was pinned and assumed.

    contract.py   what an estimator must do
"""
