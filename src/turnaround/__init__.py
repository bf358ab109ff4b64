"""turnaround: train image classifiers on 1..N workers, record every run, compare and predict.

The command line is `turnaround`; see README.md for the tree.
"""
