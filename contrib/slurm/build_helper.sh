#!/bin/sh
# Compile the helper of `drom slurm` from drom's sources: contrib/slurm/build_helper.sh [FILE]. Needs a C compiler, and the headers and
# library of the Slurm that runs (Debian: libslurm-dev). CC, CFLAGS and LDFLAGS are respected. FILE is build/slurm/drom-slurm-helper
# by default.
set -eu
here=$(dirname "$0")
made=${1:-$here/../../build/slurm/drom-slurm-helper}
mkdir -p "$(dirname "$made")"
# shellcheck disable=SC2086 # flags are words
"${CC:-gcc}" -std=gnu11 -O2 -g -Wall -Wextra ${CFLAGS:-} -D_GNU_SOURCE -o "$made" "$here/drom_slurm_helper.c" ${LDFLAGS:-} -lslurm -ldl
