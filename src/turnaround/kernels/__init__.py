"""GPU kernels of our own: do they run here?

Triton compiles them on the spot, for which it needs a C compiler and the headers of Python: many containers and compute
nodes have neither. Then torch's own operations do the work. The kernels themselves stand beside what they replace, in
modules named *_triton.py, which nobody else imports.

    available.py         whether they run, why not, and a module of them
    smallest_triton.py   the kernel that is tried
"""
