#!/bin/sh
# Compile the SPANK plugin from drom's sources: contrib/slurm/build.sh [FILE]. Needs a C compiler, Python 3.10 and Slurm's header
# slurm/spank.h (Debian: libslurm-dev). CC, CFLAGS and PYTHON are respected. FILE is build/slurm/spank_drom.so by default.
set -eu
cd "$(dirname "$0")/../.."
[ -d dromlib/native/task ] || { echo "build.sh: run this in the sources of drom, which an installation does not have." >&2 && exit 1; }
made=${1:-build/slurm/spank_drom.so}
generated=$(dirname "$made")
native=dromlib/native
mkdir -p "$generated"

"${PYTHON:-python3}" dromlib/layout.py "$generated/drom_layout.h"
# shellcheck disable=SC2086 # flags are words
"${CC:-gcc}" -std=gnu11 -O2 -g -Wall -Wextra ${CFLAGS:-} -D_GNU_SOURCE -fPIC -fvisibility=hidden -shared \
    -I "$generated" -I $native/include -I $native/src -I $native/task -Wl,--version-script=contrib/slurm/spank_drom.map \
    -o "$made" contrib/slurm/spank_drom.c $native/task/*.c $native/src/*.c -lpthread -ldl
