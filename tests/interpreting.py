"""Triton's interpreter: kernels of our own on the CPU, in a process that is forked with torch loaded."""

from __future__ import annotations

import os
import subprocess

ANEW = """
import sys
for name in [name for name in sys.modules if name.partition(".")[0] == "triton" and not name.startswith("triton._C")]:
    del sys.modules[name]
"""
"""Triton asks for its interpreter while it is imported, and timm has imported it: it is imported again. The compiled
part of it stays, since no extension of this kind can be loaded twice."""


def interpreted(python: str, code: str) -> str:
    """Return what `code`, a program that imports kernels of turnaround, prints; `python` is a forking parent's."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [python, "-c", ANEW + code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout
