"""A run in the viewers that a laboratory has already, while it trains.

Enters: a run directory that grows. Leaves: its scalars in TensorBoard, MLflow, W&B or trackio. The launcher
follows the files, so the training waits for nobody, and a viewer that cannot be reached is said once and left alone.

    follow.py        which viewers, and a thread that hands them every new epoch as named numbers
    tensorboard.py   event files in logs/tensorboard of the run, written by TensorBoard's own writer
    mlflow.py        a run of the server that MLFLOW_TRACKING_URI names, the same one after a resume
    trackers.py      a run of W&B (online or offline) or of trackio, the same one after a resume
"""
