"""A resolved recipe and decoded pixels -> trained weights and a recorded run.

Enters: a run directory with its recipe, the pixel cache, this process's place.
Leaves: the same directory, filled: epochs, spans, telemetry, checkpoints, evaluation, status.

    loading.py     what a process loads before it has images, and what it never loads
    run.py         one start of a run: connect, agree, build, restore, warm up, train, record
    assembly.py    every part made once, in order; what learns and what of it is compiled
    loop.py        the training loop, as its pseudocode reads; decisions of all processes together
    plan.py        how long it will be: epochs planned, the best so far, patience, a time limit, more epochs, and the
                   learning rate where they change on the way
    position.py    where a training stands: epochs, steps of the epoch, steps of the run
    step.py        one update over the hosted workers
    sharing.py     shares of the workers by measured speed
    averages.py    kept for evaluation: batch norm's statistics over workers, the weights averaged over time
    noise.py       the gradient noise scale, measured on the way
    graph.py       passes and updates as CUDA graphs, where the host is the limit
    feed.py        what steps and evaluations take in: images
    frozen.py      a backbone that does not learn: split off, run in passes of one size, its features as input
    evaluate.py    exact evaluation on any number of processes
    schedule.py    the learning rate of every step; scaling with the workers
    choices.py     device, precision, compiling, depthwise kernels, each with its reason
    fitting.py     the largest batch that fits into the memory, tried before the first epoch; out of memory, explained
    checkpoint.py  whole or invisible: safetensors, a manifest with SHA-256, no pickle
    saving.py      what a checkpoint keeps, when it is due, its writing beside the training; the best epoch's weights
    neighbours.py  others who want the same cores: threads sleep while they wait, instead of spinning
    recording.py   what happens in the loop -> the run directory and the progress display; how long it will take
    energy.py      watt-hours of an epoch, over the GPUs of all hosts
    clock.py       where the time goes: parts of the run, of its start-up, and of a step on the device's own timeline
    preview.py     the first training images, before and after their variation
    bench.py       each part of a training alone, and all together: ceilings; the bytes that a step asks of any GPU
    bench_run.py   one start of a process that measures those
    faults.py      faults on purpose, for tests: TURNAROUND_FAULT
"""
