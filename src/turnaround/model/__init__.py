"""Name -> network.

Enters: the [model] section of a recipe and the number of classes.
Leaves: a `Network`: the module with a new last layer, how its input is normalised, and what it costs.

    network.py               any network by name, frozen or fine-tuned; weights from a file; parameters and FLOPs
    timm_networks.py         one network of timm without the other 1,200
    size_limit.py            building ends where a network outgrows its weights
    small.py                 our own network for the demo and for few images
    resnet11.py              our own network for small images
    convolutions.py          depthwise and full-window convolutions, without cuDNN's waits
    depthwise_triton.py      the first of them as GPU kernels
    grouped_norm.py          batch norm of several workers in one pass
    grouped_norm_triton.py   the same as GPU kernels
"""
