"""A resolved recipe and decoded pixels -> trained weights and a recorded run.

Enters: a run directory with its recipe, the pixel cache, this process's place.
Leaves: the same directory, filled: epochs, spans, telemetry, checkpoints, evaluation, status.

    loading.py     what a process loads before it has images, and what it never loads
    run.py         one start of a run: connect, agree, build, restore, warm up, train, record
    assembly.py    every part made once, in order; what learns and what of it is compiled
    loop.py        the training loop, as its pseudocode reads
    plan.py        how long it will be: epochs planned, the best so far, patience, a time limit, more epochs
    course.py      the learning rate where the epochs change on the way
    best.py        the weights of the best epoch, kept
    position.py    where a training stands: epochs, steps of the epoch, steps of the run
    step.py        one update over the hosted workers
    sharing.py     shares of the workers by measured speed
    statistics.py  batch-norm running statistics: the mean over workers, on every engine
    averaging.py   the moving average of the weights (EMA): evaluated instead of them
    noise.py       the gradient noise scale, measured on the way
    graph.py       full passes as CUDA graphs, where the host is the limit
    feed.py        what steps and evaluations take in: images
    frozen.py      a backbone that does not learn: split off, run in passes of one size, its features as input
    evaluate.py    exact evaluation on any number of processes
    schedule.py    the learning rate of every step; scaling with the workers
    choices.py     device, precision, compiling, depthwise kernels, each with its reason
    fitting.py     the largest batch that fits into the memory, tried before the first epoch
    footprint.py   what a step asks of any GPU: bytes kept by a forward pass, weights
    agreement.py   decisions of all processes together: to stop, to save, that the loss is no number
    checkpoint.py  whole or invisible: safetensors, a manifest with SHA-256, no pickle
    saving.py      when a checkpoint is due, and its writing beside the training
    neighbours.py  others who want the same cores: threads sleep while they wait, instead of spinning
    recording.py   what happens in the loop -> the run directory and the progress display
    energy.py      watt-hours of an epoch, over the GPUs of all hosts
    outlook.py     how long a training will take on a CPU, told after its first steps
    clock.py       where the time goes: parts of the run, of its start-up, and of a step on the device's own timeline
    preview.py     the first training images, before and after their variation
    bench.py       each part of a training alone, and all together: ceilings
    bench_run.py   one start of a process that measures those
    faults.py      faults on purpose, for tests: TURNAROUND_FAULT
"""
