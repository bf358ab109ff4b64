"""The door between the GPU side and the reading side: a run directory, written by one and read by the other.

Enters: what training measured, as the dataclasses of `schema`. Leaves: the same values, read back by `reader`
on any machine, without torch. Nothing else passes between the two sides, and nobody reads a log's text.

    schema.py      the values in the files, field by field
    metric_names.py    metric aliases: what training programs call accuracy, loss and learning rate
    class_metrics.py   precision, recall and F1 of classes, from counts
    coding.py      values to JSON objects and back; the format version
    files.py       the one safe opener: no links, regular files, limits; bytes to JSON objects
    growing.py     files as values, read whole or read on while they grow
    layout.py      every path inside a run directory; making a new one, opening an old one
    writer.py      whole files by temporary name, fsync and rename; lines by appending
    heartbeat.py       where each process is, once a second; who is gone or silent
    completeness.py     do the files of a run belong together, and is one of them gone?
    recipe_changes.py   a resume with another recipe than the run began with is refused
    lock.py        one live run in a directory at a time
    reader.py      a run directory as values; the runs below a folder
    follow.py      one run, read on while it trains
    verify.py      is every file what was written? by checksums and digests
    folder.py      a folder of runs while they come and go
    machine.py     what the run ran on: host, GPUs, versions, commit
    host.py        this host, its job and this command as a record names them; a code where it is private
    places.py      where the images of a private run lie: kept beside its record, not in it
    git.py         the commit of a repository, read without running what it names
    gpus.py        the GPUs of this process, asked through NVML
    energy.py      joules of the GPUs of this host, by their counter or by their power over time
    telemetry.py   a thread that samples CPU, memory and GPUs once a second
    importers/     other people's tables and logs become run directories
    notify.py      a word when a run ends, fails, or leaves a GPU idle
    viewers/       a run in TensorBoard, MLflow, W&B or trackio, while it trains

The format itself is described, for other programs, in docs/record-format.md.
"""
