"""Any training loop, recorded: one object beside somebody else's program, which writes our run directory.

Enters: calls from a loop that is not ours, and a few facts about it. Leaves: the same files as of `turnaround train`.
Whatever happens here, the training goes on: the recorder warns once and steps aside. No torch.

    recorder.py   what a user holds: Recorder, with epoch, step, span
    facts.py      what is known about the training -> recipe.json and machine.json
    measures.py   what a loop says at the end of an epoch, by whatever name -> a line of epochs.jsonl
    timing.py     where the time went: epochs, evaluation, the parts of sampled steps
    folder.py     which directory this process writes into, and finding it from the other processes
    background_writer.py     a thread that does all the writing, so that no training waits for a disk
"""

from turnaround.recorder.recorder import Recorder as Recorder
from turnaround.recorder.recorder import RecorderWarning as RecorderWarning
