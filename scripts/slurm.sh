#!/usr/bin/env bash
# Install what `make test-slurm` and `make demo-slurm` need, if this is root and apt-get is there; otherwise say what is missing. Slurm's
# services stay stopped.
set -euo pipefail

packages=(munge slurmctld slurmd slurm-client libslurm-dev openmpi-bin libopenmpi-dev mpich libmpich-dev)
missing=
for tool in munged slurmctld slurmd srun mpicc mpirun mpicc.openmpi mpicc.mpich; do
    command -v "$tool" >/dev/null || missing=1
done
[[ -e /usr/include/slurm/spank.h ]] || missing=1
[[ -z $missing ]] && exit
if ((EUID == 0)) && command -v apt-get >/dev/null; then
    echo "slurm: installing ${packages[*]}" >&2
    log=$(mktemp)
    if ! { DEBIAN_FRONTEND=noninteractive apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${packages[@]}"; } </dev/null >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        echo "slurm: apt-get could not install Slurm; $log has its output. What needs it is skipped." >&2
    fi
else
    echo "slurm: this machine lacks one of ${packages[*]} (Debian's names): install them." >&2
fi
