"""MLflow: a run of the tracking server. Everything about the server is in MLflow's own variables.

MLFLOW_TRACKING_URI says where it is, MLFLOW_EXPERIMENT_NAME under which experiment (without it: turnaround), and
MLFLOW_TRACKING_USERNAME, _PASSWORD or _TOKEN who asks.
"""

from __future__ import annotations

import hashlib
import os
import time

from turnaround.errors import RunDirectoryError
from turnaround.record.files import read_json
from turnaround.record.reader import Run
from turnaround.record.schema import EpochRecord
from turnaround.record.viewers.follow import scalars_of, settings_of
from turnaround.record.writer import write_json

EXPERIMENT = "turnaround"
MAX_SETTINGS = 100  # MLflow takes no more in one call
# A server that does not answer is given up after a few seconds; MLflow itself would try for minutes.
PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
GONE = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "INVALID_STATE")
"""Error codes of MLflow for a run that was deleted."""
STATES = {"finished": "FINISHED", "failed": "FAILED", "diverged": "FAILED", "interrupted": "KILLED"}


class MLflow:
    """One run of one experiment."""

    def __init__(self) -> None:
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        from mlflow.entities import Metric, Param
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        self._metric, self._param, self._error = Metric, Param, MlflowException
        self._client = MlflowClient()
        self._id = ""
        """The run on the server, once there is one."""
        # Not in plain text: the address may hold a password, and run directories are shared.
        self._server = hashlib.sha256(str(self._client.tracking_uri).encode()).hexdigest()

    def begin(self, run: Run) -> set[int]:
        known = self._go_on(run)
        if known is None:
            self._create(run)
            known = set()
        return known

    def _go_on(self, run: Run) -> set[int] | None:
        """Go on with the run that an earlier start has made on this server, if it is still there."""
        try:
            before = read_json(run.directory.viewer_note("mlflow"), run.path)
            if before.get("server") != self._server:
                return None
            self._id = str(before["run_id"])
            self._client.update_run(self._id, status="RUNNING")
        except (RunDirectoryError, KeyError):
            return None
        except self._error as error:
            if error.error_code in GONE:
                return None
            raise
        names = self._client.get_run(self._id).data.metrics
        return {metric.step for name in names for metric in self._client.get_metric_history(self._id, name)}

    def _create(self, run: Run) -> None:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known is not None else self._client.create_experiment(name)
        tags = {"mlflow.source.name": "turnaround", "turnaround.directory": str(run.path.absolute())}
        made = self._client.create_run(experiment, run_name=run.path.name, tags=tags)
        self._id = made.info.run_id
        settings = [self._param(key, value) for key, value in settings_of(run.recipe).items()]
        self._client.log_batch(self._id, params=settings[:MAX_SETTINGS])
        write_json(run.directory.viewer_note("mlflow"), {"server": self._server, "run_id": self._id}, run.path)

    def epoch(self, record: EpochRecord) -> None:
        now_ms = int(time.time() * 1000)
        metrics = [self._metric(name, value, now_ms, record.epoch) for name, value in scalars_of(record).items()]
        self._client.log_batch(self._id, metrics=metrics)

    def end(self, run: Run) -> None:
        status = run.status
        if status.cause:
            self._client.set_tag(self._id, "turnaround.cause", status.cause[:500])
        self._client.set_terminated(self._id, status=STATES.get(status.state, "KILLED"))
