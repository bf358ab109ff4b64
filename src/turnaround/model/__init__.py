"""Name -> network.

Enters: the [model] section of a recipe and the number of classes.
Leaves: a `Network`: the module with a new last layer, how its input is normalised, and what it costs.

    small.py     our own network
    network.py   any network by name, frozen or fine-tuned
    split.py     a frozen network as backbone and last layer
    full_window.py   a convolution over a whole picture, as the matrix product that it is
    depthwise.py             convolutions of every channel on its own, without a wait for each new shape
    depthwise_triton.py      the same as GPU kernels
    weights.py   weights from a file, checked against the network
    grouped_norm.py          batch norm of several workers in one pass
    grouped_norm_triton.py   the same as GPU kernels
    cost.py      parameters, FLOPs, gradient bytes
"""
