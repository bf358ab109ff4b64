"""MLflow: a run of the tracking server. Everything about the server is in MLflow's own variables.

MLFLOW_TRACKING_URI says where it is, MLFLOW_EXPERIMENT_NAME under which experiment (without it: turnaround), and
MLFLOW_TRACKING_USERNAME, _PASSWORD or _TOKEN who asks.
"""

from __future__ import annotations

import os
import time

from turnaround.record.reader import Run
from turnaround.record.schema import EpochRecord
from turnaround.record.viewers.scalars import scalars_of, settings_of

EXPERIMENT = "turnaround"
MOST_SETTINGS = 100  # MLflow takes no more in one call
# A server that does not answer is given up after a few seconds; MLflow itself would try for minutes.
PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
STATES = {"finished": "FINISHED", "failed": "FAILED", "diverged": "FAILED", "interrupted": "KILLED"}


class MLflow:
    """One run of one experiment."""

    def __init__(self) -> None:
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric, self._param = Metric, Param
        self._client = MlflowClient()

    def begin(self, run: Run) -> None:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known is not None else self._client.create_experiment(name)
        tags = {"mlflow.source.name": "turnaround", "turnaround.directory": str(run.path.absolute())}
        made = self._client.create_run(experiment, run_name=run.path.name, tags=tags)
        self._id = made.info.run_id
        settings = [self._param(key, value) for key, value in settings_of(run.recipe).items()]
        self._client.log_batch(self._id, params=settings[:MOST_SETTINGS])

    def epoch(self, record: EpochRecord) -> None:
        now_ms = int(time.time() * 1000)
        metrics = [self._metric(name, value, now_ms, record.epoch) for name, value in scalars_of(record).items()]
        self._client.log_batch(self._id, metrics=metrics)

    def end(self, run: Run) -> None:
        status = run.status
        if status.cause:
            self._client.set_tag(self._id, "turnaround.cause", status.cause[:500])
        self._client.set_terminated(self._id, status=STATES.get(status.state, "KILLED"))
