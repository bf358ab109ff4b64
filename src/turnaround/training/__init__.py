"""A resolved recipe and decoded pixels -> trained weights and a recorded run.

Enters: a run directory with its recipe, the pixel cache, this process's place.
Leaves: the same directory, filled: epochs, spans, telemetry, checkpoints, evaluation, status.

    run.py         one start of a run: agree, restore, describe, train, record
    assembly.py    composition: every part made once, in order
    bench.py       each part of a training alone, and all together: ceilings
    loop.py        the training loop, as its pseudocode reads
    agreement.py   what all processes decide together: to stop, to save, that the loss is no number
    step.py        one update over the hosted workers
    graph.py       a pass as one launch, where the host is the limit
    statistics.py  batch-norm running statistics: the mean over workers, on every engine
    evaluate.py    exact evaluation on any number of processes
    schedule.py    learning rate at every update; scaling with the workers
    noise.py       the gradient noise scale, measured on the way
    choices.py     device, precision and compiling, each with its reason
    learner.py     what learns, what is frozen, what is compiled
    frozen.py      a backbone that does not learn, in passes of one size
    feed.py        what steps and evaluations take in: images, or features of a frozen backbone
    recording.py   what happens in the loop -> the run directory and the progress display
    clock.py       where the time goes: parts of the run
    step_timer.py  parts of a step, on the device's own timeline
    memory.py      a device that is out of memory: what was tried, what would fit
    saving.py      when a checkpoint is due; writing it beside the training
    faults.py      faults on purpose, for tests: TURNAROUND_FAULT
    checkpoint.py  whole or invisible: safetensors, a manifest with SHA-256, no pickle
"""
