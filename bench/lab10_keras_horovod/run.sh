#!/usr/bin/env bash
# The lab's stack and turnaround side by side, in one command; compare.py explains its flags.
#
#     bash bench/lab10_keras_horovod/run.sh [FOLDER] [--json] ...
#
# The first time the lab's environment is made (environment.sh: minutes). turnaround runs in the environment of
# TURNAROUND_PYTHON, by default .venv of this checkout.
set -euo pipefail
HERE="$(cd "$(dirname "$0")" && pwd)"
ROOT="$(cd "$HERE/../.." && pwd)"
LAB_PYTHON="$(bash "$HERE/environment.sh")"
OURS="${TURNAROUND_PYTHON:-$ROOT/.venv/bin/python}"
[ -x "$OURS" ] || OURS=python3
exec env PYTHONPATH="$ROOT/src${PYTHONPATH:+:$PYTHONPATH}" "$OURS" "$HERE/compare.py" --python "$LAB_PYTHON" "$@"
