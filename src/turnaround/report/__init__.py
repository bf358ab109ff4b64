"""Numbers -> what people read. No arithmetic beyond rounding, no torch.

Enters: recorded runs and findings. Leaves: text, tables, pages.

    text.py       tables and sentences for the terminal
    bench_text.py   the ceilings of a machine
    progress.py   a training while it runs
"""
