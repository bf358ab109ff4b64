"""What the tests of a trained network share: the images it was measured on, and a server with a client."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from turnaround.data.folder import scan
from turnaround.recipe import Recipe
from turnaround.record.reader import Run
from turnaround.use.predictor import Predictor
from turnaround.use.server import listen, make_server
from turnaround.use.service import Limits
from turnaround.web.guard import Access


def validation_images(run: Path) -> tuple[list[Path], list[int]]:
    """As files and labels."""
    recipe = Recipe.from_record(Run.load(run).recipe)
    table = scan(Path(recipe.data.source), holdout=recipe.data.holdout, seed=recipe.training.seed)
    files = [table.root / name for name in table.files[table.num_train :]]
    return files, table.labels[table.num_train :].tolist()


@contextmanager
def serving(predictor: Predictor, access: Access | None = None, limits: Limits | None = None) -> Iterator[int]:
    """A real server on a free port of this machine; yields the port."""
    server = make_server(predictor, access or Access(), limits)
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            end_s = time.monotonic() + 120
            while not server.started:
                assert thread.is_alive()
                assert time.monotonic() < end_s
                time.sleep(0.01)
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(timeout=120)
            assert not thread.is_alive()
