"""Checks a folder of images before anybody trains on them: leakage, contradictions, unreadable files, oddities.

Enters: a folder. Leaves: a `Check`: groups of files that show one photo, unreadable files, oddities, warnings.

    headers.py      size, mode, orientation, frames of each file, without decoding it
    copies.py       identical images, by digests: what every training checks
    descriptors.py  vectors that stay the same when a picture is turned, mirrored, cropped or shifted
    search.py       the pairs that are worth a closer look, by blocked matrix products
    register.py     turn, mirror, scale and shift between two pictures, and how well they fit
    pairs.py        the three above together: near-duplicates
    groups.py       links -> groups; a hold-out that keeps each group on one side
    dataset.py      all of it for a folder, and what is wrong with its contents and classes
    labels.py       labels that networks contradict which have not seen the images: confident learning
"""

CHECK_VERSION = 1
"""Rises when the check finds other near-duplicates than before: cached splits are then made anew."""
