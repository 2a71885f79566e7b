#!/usr/bin/env bash
# Fetch the real programs that `make test-programs` runs: scripts/programs.sh VENV. Root gets Debian's packages through apt-get; others
# get one sentence that names what is missing, and the tests of those programs are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$1
packages=()
needs() { # FILE PACKAGE
    [[ -e $1 ]] || packages+=("$2")
}

needs /usr/bin/lmp lammps
needs /usr/bin/gmx gromacs
needs /usr/lib/python3/dist-packages/petsc4py.pth python3-petsc4py
needs /usr/share/doc/python-petsc4py-doc/examples/demo/kspsolve python-petsc4py-doc
needs /usr/lib/python3/dist-packages/mpi4py python3-mpi4py
needs /usr/include/tbb/parallel_reduce.h libtbb-dev
needs "/usr/lib/$(uname -m)-linux-gnu/libmpich.so.12" libmpich12
command -v g++ >/dev/null || packages+=(g++)
command -v patch >/dev/null || packages+=(patch)

if ((${#packages[@]})); then
    if ((EUID == 0)) && command -v apt-get >/dev/null; then
        echo "programs: installing ${packages[*]}" >&2
        log=$(mktemp)
        if ! { DEBIAN_FRONTEND=noninteractive apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${packages[@]}"; } </dev/null >"$log" 2>&1; then
            tail -n 20 "$log" >&2
            echo "programs: apt-get could not install ${packages[*]}; $log has its output. Going on without." >&2
        fi
    else
        echo "programs: this machine lacks ${packages[*]} (Debian's names): install them, or their tests are skipped." >&2
    fi
fi

PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 "$venv/bin/python" -m pip install --quiet -c constraints.txt -e ".[programs]" ||
    echo "programs: pip could not install the programs of PyPI: their tests are skipped." >&2
