#!/usr/bin/env bash
# The lab's stack in an environment of its own: Keras 2.15, TensorFlow 2.15 and Horovod 0.28.1, for CPU.
#
#     bash bench/lab10_keras_horovod/environment.sh         prints the path of its python; the first time 5-10 minutes
#
# Exit status 69 where it cannot be made: no Python 3.11, no TensorFlow 2.15 for it, or no compiler. The environment and
# the Horovod wheel lie outside the checkout (TURNAROUND_KERAS_HOROVOD_ENV) and are kept.
set -euo pipefail
cd "$(dirname "$0")/../.."

HOROVOD=0.28.1
TENSORFLOW=2.15.1
PYTHON="${PYTHON:-python3.11}"
ENVIRONMENT="${TURNAROUND_KERAS_HOROVOD_ENV:-$HOME/.cache/turnaround-keras-horovod/env}"
CACHE="$(dirname "$ENVIRONMENT")"
WHEELS="$CACHE/wheels/horovod-$HOROVOD-tensorflow-$TENSORFLOW"
# What the environment was made from: a change of this script makes it anew.
RECIPE="$(sha256sum <bench/lab10_keras_horovod/environment.sh)"

cannot() {
    echo "$1" >&2
    exit 69
}

make_environment() {
    rm -rf "$ENVIRONMENT"
    "$PYTHON" -m venv "$ENVIRONMENT"
    pip=("$ENVIRONMENT/bin/python" -m pip --quiet --disable-pip-version-check)
    # numpy, and scipy for ImageDataGenerator, of TensorFlow's own time: newer ones need numpy 2, which it does not know.
    "${pip[@]}" install "tensorflow-cpu==$TENSORFLOW" 'numpy==1.26.4' 'scipy==1.11.4' 'pillow<12' 'setuptools<80' \
        wheel packaging cloudpickle psutil pyyaml cffi ||
        cannot "TensorFlow $TENSORFLOW cannot be installed here."
    compgen -G "$WHEELS/horovod-*.whl" >/dev/null || build_wheel
    "${pip[@]}" install --no-deps "$WHEELS"/horovod-*.whl
    # What turnaround's recorder and report need beside it.
    "${pip[@]}" install --constraint constraints.txt typer rich nvidia-ml-py
    echo "$RECIPE" >"$ENVIRONMENT/made-from" # last, so that an interrupted installation is repeated
}

# TensorFlow's headers need C++17 and Horovod asks for C++11 and C++14: its CMake files get the newer one through a toolchain.
build_wheel() {
    test -x /usr/bin/cmake && command -v g++ make >/dev/null || cannot "Horovod needs cmake, g++ and make."
    local work
    work="$(mktemp -d "$CACHE/build.XXXXXX")"
    echo 'set(CMAKE_PROJECT_INCLUDE "${CMAKE_CURRENT_LIST_DIR}/after.cmake")' >"$work/toolchain.cmake"
    cat >"$work/after.cmake" <<'CMAKE'
foreach(v 11 14)
  set(CMAKE_CXX${v}_STANDARD_COMPILE_OPTION "-std=c++17")
  set(CMAKE_CXX${v}_EXTENSION_COMPILE_OPTION "-std=gnu++17")
endforeach()
CMAKE
    echo "Building Horovod $HOROVOD once (4-8 minutes); what the build says is in $CACHE/build.log" >&2
    if ! HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_PYTORCH=1 \
        HOROVOD_WITHOUT_MXNET=1 MAKEFLAGS=-j2 HOROVOD_CMAKE=/usr/bin/cmake CMAKE_TOOLCHAIN_FILE="$work/toolchain.cmake" \
        nice -n 10 "$ENVIRONMENT/bin/python" -m pip wheel --verbose --no-cache-dir --no-deps --no-build-isolation \
        --wheel-dir "$work/wheels" "horovod==$HOROVOD" >"$CACHE/build.log" 2>&1; then
        tail -n 40 "$CACHE/build.log" >&2
        rm -rf "$work"
        exit 1
    fi
    mkdir -p "$(dirname "$WHEELS")"
    rm -rf "$WHEELS"
    mv "$work/wheels" "$WHEELS" # whole or not at all
    rm -rf "$work"
}

"$PYTHON" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null ||
    cannot "TensorFlow 2.15 needs Python 3.11: set PYTHON to one (now: $PYTHON)."
mkdir -p "$CACHE"
exec 9>"$CACHE/lock" # two runs at once make it once
flock 9
[ "$(cat "$ENVIRONMENT/made-from" 2>/dev/null)" = "$RECIPE" ] || make_environment >&2
flock -u 9
echo "$ENVIRONMENT/bin/python"
