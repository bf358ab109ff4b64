"""A worker process as in production, that also notes what every step consumed, and may die on command.

TRACED_STEPS=FOLDER           writes FOLDER/RANK.jsonl: per step the sample ids and the augmentation's random numbers
TRACED_KILL_AFTER_EPOCH=N     SIGKILLs itself when epoch N's line is written, before its checkpoint
TRACED_FAIL_RANK=R            raises in the first step of process R
TRACED_SECONDS=A,B            what each process measures of its workers, in seconds for one, whatever the clock says
"""

import json
import os
import signal
from pathlib import Path

from turnaround import worker
from turnaround.data.augment import uniforms
from turnaround.training.recording import RunRecorder
from turnaround.training.sharing import Sharing
from turnaround.training.step import Step

plain_step, plain_epoch_done = Step.__call__, RunRecorder.epoch_done
plain_seconds = Sharing._seconds_per_worker


def step(self, batch, position, *, learning_rate):
    workers = self.components.workers
    if str(workers.rank) == os.environ.get("TRACED_FAIL_RANK"):
        raise RuntimeError("told to fail")
    if folder := os.environ.get("TRACED_STEPS"):
        draws = uniforms(seed=self.components.inputs.augmentation.seed, epoch=position.epoch, ids=batch.ids)
        line = {
            "update": position.global_step,
            "worker_sizes": batch.worker_sizes,
            "ids": batch.ids.tolist(),
            "draws": draws.tolist(),
            "pixels": int(batch.images.long().sum()),
        }
        with (Path(folder) / f"{workers.rank}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
    plain_step(self, batch, position, learning_rate=learning_rate)


def epoch_done(self, record):
    plain_epoch_done(self, record)
    if str(record.epoch) == os.environ.get("TRACED_KILL_AFTER_EPOCH"):
        os.kill(os.getpid(), signal.SIGKILL)


def seconds_per_worker(self):
    found = plain_seconds(self)  # measured and gathered in any case
    told = os.environ.get("TRACED_SECONDS")
    return [float(word) for word in told.split(",")] if told else found


Step.__call__ = step
Sharing._seconds_per_worker = seconds_per_worker
RunRecorder.epoch_done = epoch_done

if __name__ == "__main__":
    worker.leave(worker.main())
