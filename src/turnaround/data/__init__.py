"""A folder of images -> batches on the device.

    source.py     a recipe's source -> a folder (generated, fetched, or the user's own)
    folder.py     class folders -> table of files; split; warnings
    formats/      tables, tar shards, Parquet, Hugging Face image folders -> the same table
    labelled.py   class folders or a table -> files with labels, to evaluate on
    split_file.py a split that was decided beforehand
    decode.py     one file -> pixels, every format and mode handled by a stated rule
    decoders.py   many files at once, by processes with limits of time and memory
    plain.py      a plain file of a cache, or an array in one, opened safely and read with a limit
    entry.py      cache entries that are whole or invisible: locks, leftovers, one rename
    pixels.py     decode once -> memory-mapped uint8, shared by all processes; fingerprint
    changes.py    which files were added, removed or changed since a run began
    sums.py       checksums of pixels, quick enough for every first read
    verify.py     is a cache what was written? every picture against its digest
    reading.py    rows of pixels from a disk, or decoded when they are needed
    order.py      which sample goes to which worker at which step
    augment.py    whole-batch functions on the device, keyed by (seed, epoch, sample)      needs torch
    mixing.py     mixup and cutmix: pairs of images, and their soft labels                 needs torch
    first_read.py pixels of the cache against their checksums, once in a process           needs torch
    batches.py    slices, residency (device / host / disk), prefetch, exact evaluation     needs torch
    inputs.py     gather, vary and normalise: what the network takes                       needs torch
    inputs_triton.py   the same as one GPU kernel                                          needs torch

Everything above the line that says torch works on a login node without it.
"""
