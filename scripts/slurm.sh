#!/usr/bin/env bash
# Install what `make test-slurm` needs, if this is root and apt-get is there; otherwise say what is missing. Slurm's services stay stopped.
set -euo pipefail

for tool in munged slurmctld slurmd srun lua5.3; do
    command -v "$tool" >/dev/null || missing=1
done
[[ -e /usr/include/slurm/spank.h ]] || missing=1
[[ -z ${missing:-} ]] && exit
if ((EUID == 0)) && command -v apt-get >/dev/null; then
    echo "slurm: installing slurmctld slurmd slurm-client munge libslurm-dev lua5.3" >&2
    log=$(mktemp)
    if ! { DEBIAN_FRONTEND=noninteractive apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends slurmctld slurmd slurm-client munge libslurm-dev lua5.3; } </dev/null >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        echo "slurm: apt-get could not install Slurm; $log has its output. Its tests are skipped." >&2
    fi
else
    echo "slurm: this machine lacks slurmctld, slurmd, slurm-client, munge, libslurm-dev or lua5.3 (Debian's names): install them, or the tests are skipped." >&2
fi
