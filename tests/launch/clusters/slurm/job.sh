#!/bin/bash
# A training on 2 hosts with 4 processes each, by turnaround.
#SBATCH --job-name=fruit-8w
#SBATCH --partition=gpu
#SBATCH --account=physics
#SBATCH --qos=normal
#SBATCH --mail-type=FAIL
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:v100:4
#SBATCH --cpus-per-task=32
#SBATCH --mem=131072M
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR2@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output="/home/ada/runs/fruit 8w/logs/slurm-%j.out"

set -euo pipefail
TURNAROUND_BEGUN_AT_S=$(date +%s.%N) # here the program begins
export TURNAROUND_BEGUN_AT_S

# Slurm sends USR2 to this script 120 s before the time limit, and on many clusters before a
# pre-emption. It is noted, and passed on to the step when there is one.
step='' warned=no
trap 'warned=yes; [ -z "$step" ] || kill -USR2 "$step" || true' USR2

# The run, what is printed on the way, and where relative paths begin.
run='/home/ada/runs/fruit 8w'
logs='/home/ada/runs/fruit 8w/logs'
cd /home/ada

# What the cluster needs first. Such scripts often use variables that are not set: that is no error here.
set +u
module load cuda
source ~/venv/bin/activate
set -u

# Python looks for code where it is installed, not in the folder of the job.
[ -n "${PYTHONSAFEPATH:-}" ] || export PYTHONSAFEPATH=1 TURNAROUND_SAFE_PATH=1

# A new run, or one that goes on: Slurm may have started this job before (SLURM_RESTART_COUNT).
export python=python
"$python" -m turnaround.launch.clusters.slurm.batch_hooks before "$run" "$logs"
program=(-m turnaround train photos --workers 8 --processes 8 --device cuda --out "$run")
if [ -e "$run/recipe.json" ]; then
    program=(-m turnaround resume --processes 8 --device cuda "$run")
fi

# What each host runs. All processes meet at a port of the first host; it follows from the job's number.
export port=$((20000 + SLURM_JOB_ID % 10000))
first_host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
export first_host
# shellcheck disable=SC2317
on_each_host() {
    set -euo pipefail
    trap '' USR2 # the training listens to it; torch.distributed.run, and Python while it starts, would die of it
    if [ -z "${GLOO_SOCKET_IFNAME:-}" ]; then # the interface that leads to the other hosts
        GLOO_SOCKET_IFNAME=$("$python" -m turnaround.launch.clusters.slurm.interface "$SLURM_JOB_NODELIST")
        export GLOO_SOCKET_IFNAME
    fi
    threads=$(($(nproc) / 4))
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((threads > 0 ? threads : 1))}"
    export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=120 # time to save, when another process has ended
    exec "$python" -m torch.distributed.run \
        --nnodes 2 --nproc-per-node 4 --node-rank "$SLURM_NODEID" \
        --rdzv-backend static --master-addr "$first_host" --master-port "$port" \
        --rdzv-id "$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}" "$@"
}

# TERM comes with scancel, to the processes too: they end by themselves, and this script waits for them.
trap ':' TERM
srun --nodes=2 --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=0 --wait=60 \
    bash -c "$(declare -f on_each_host); on_each_host \"\$@\"" bash "${program[@]}" &
step=$!
while kill -0 "$step" 2>/dev/null; do # a signal ends a wait early, and a warning during the start goes unheard
    if [ "$warned" = yes ]; then
        sleep 2 || true
        kill -USR2 "$step" 2>/dev/null || true
    else
        wait "$step" || true
    fi
done
status=0
wait "$step" || status=$?

# torch.distributed.run makes every exit status a 1: the run's own record says whether it can go on (75).
status=$("$python" -m turnaround.launch.clusters.slurm.batch_hooks after "$run" "$logs" "$status") || status=1
if [ "$status" -ne 75 ]; then exit "$status"; fi

# Back into the queue when time was up or others go first; not when somebody has cancelled the job.
job=$(scontrol show job -o "$SLURM_JOB_ID") || job=
if [[ $job == *JobState=RUNNING* ]] && { [ "$warned" = yes ] || [[ $job =~ PreemptTime=[0-9] ]]; }; then
    if "$python" -m turnaround.launch.clusters.slurm.batch_hooks requeue "$logs" 100; then
        scontrol requeue "$SLURM_JOB_ID" && exit 75
        echo "Slurm has refused to put this job back into the queue. The last checkpoint is kept." >&2
    fi
fi
printf 'Go on with: turnaround resume %q\n' "$run" >&2
exit 75
