#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# TaskProlog of Slurm for sites that compile no plugin: registers the tasks of steps with the node's agent. See docs/slurm.md.
#
# Users ask for it with DROM_MALLEABLE=MIN:MAX (CPUs per task) in the environment of srun, sbatch or the batch script. slurmd runs
# this as the user, as a child of the task, and adds the variables that it prints to the environment of the task.
# No failure of it stops a task.

runtime_dir=/run/drom
drom_run=/usr/local/bin/drom-run
deadline=30

# Tasks of steps only: a batch script is no task, and srun in it inherits the variable. Its step has no number, or, from Slurm
# 26.05 on, a negative one.
[ -n "${DROM_MALLEABLE:-}" ] || exit 0
case ${SLURM_STEP_ID:-} in
'' | *[!0-9]*) exit 0 ;;
esac

min=${DROM_MALLEABLE%%:*}
max=${DROM_MALLEABLE#*:}
case $DROM_MALLEABLE in
*[!0-9:]* | *:*:* | :* | *: | ??????*:* | *:??????*) min=0 ;;
*:*) ;;
*) min=0 ;;
esac
if [ "$min" -lt 1 ] || [ "$max" -lt "$min" ]; then
    echo "print drom: DROM_MALLEABLE=$DROM_MALLEABLE: give two numbers of CPUs per task, from 1 on, such as 4:48."
elif ! [ -x "$drom_run" ]; then
    echo "print drom: this task runs unmanaged: there is no $drom_run on this node."
else # exec, because the parent of drom-run is the task
    exec "$drom_run" --for-parent --job "slurm-$SLURM_JOB_ID" --runtime-dir "$runtime_dir" --min "$min" --cpus "$max" --deadline "$deadline"
fi
