"""Many configurations of one recipe, on this machine. No torch.

Enters: a recipe and the configurations to compare. Leaves: run directories, all of one study.

    plan.py      which runs answer the question, and in which order
    state.py     where the study stands, read from its run directories
    conduct.py   runs what is missing, and only that
"""
