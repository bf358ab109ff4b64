"""Many configurations of one recipe, on this machine or on a cluster. No torch.

Enters: a recipe and the configurations to compare. Leaves: run directories, all of one study.
"""
