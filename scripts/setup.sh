#!/usr/bin/env bash
# Make a virtual environment with drom and its tools: scripts/setup.sh [DIRECTORY]. `make setup` calls it when it must.
#
# Needs Python >= 3.10 with venv and headers, and a C compiler. Where they are missing, root gets them through apt-get; others get one
# sentence that says what to type. cmake and ninja come with pip's build isolation. The MPI examples want Open MPI, and tests
# MPICH, Fortran, clang and OpenBLAS as well: root gets them; without them tests say so.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${1:-.venv}
python=${PYTHON:-python3}
packages=()

fail() {
    echo "setup: $*" >&2
    exit 1
}

has_new_python() {
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}

has_venv() {
    "$python" -c 'import ensurepip, venv' 2>/dev/null
}

has_compiler() {
    local scratch status=0
    scratch=$(mktemp -d)
    printf '#include <stdio.h>\nint main(void) { return 0; }\n' >"$scratch/probe.c"
    ${CC:-gcc} -fopenmp "$scratch/probe.c" -o "$scratch/probe" 2>/dev/null || status=1
    rm -rf "$scratch"
    return "$status"
}

has_headers() {
    "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' 2>/dev/null
}

has_pip() {
    "$venv/bin/python" -m pip --version >/dev/null 2>&1
}

apt_install() {
    local log
    log=$(mktemp)
    echo "setup: installing $*" >&2
    export DEBIAN_FRONTEND=noninteractive
    if ! { apt-get update && apt-get install -y --no-install-recommends "$@"; } </dev/null >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        echo "setup: apt-get could not install $*; the end of its output is above ($log has all)." >&2
        return 1
    fi
    rm -f "$log"
}

unpack() { # PACKAGE PROGRAM...: unpacks these programs of a package into the environment
    local scratch status=0 package=$1
    shift
    scratch=$(mktemp -d)
    echo "setup: unpacking $package into $venv" >&2
    (
        cd "$scratch"
        { apt-get download "$package" || { apt-get update && apt-get download "$package"; }; } && dpkg-deb -x "$package"_*.deb .
    ) </dev/null >"$scratch/log" 2>&1 && install "${@/#/$scratch/usr/bin/}" "$venv/bin" || status=1
    rm -rf "$scratch"
    return "$status"
}

has_new_python || fail "drom needs Python 3.10 or newer as '$python'; install one, or name it: make setup PYTHON=/path/to/python3."
has_venv || packages+=(python3-venv)
has_compiler || packages+=(gcc libc6-dev)
has_headers || packages+=(python3-dev)

if ((${#packages[@]})); then
    command -v apt-get >/dev/null ||
        fail "this machine lacks ${packages[*]} (Debian's names); install them with its package manager and run make setup again."
    ((EUID == 0)) ||
        fail "this machine lacks ${packages[*]}; run 'sudo apt-get update && sudo apt-get install -y ${packages[*]}' and then make setup again."
    apt_install "${packages[@]}" || exit 1
    has_venv || fail "'$python' still has no venv module; use the system's python: make setup PYTHON=/usr/bin/python3."
    has_headers || fail "'$python' still has no Python.h; use the system's python: make setup PYTHON=/usr/bin/python3."
    has_compiler || fail "'${CC:-gcc}' still cannot build an OpenMP program; set CC to a compiler that can."
fi

if ((EUID == 0)) && ! command -v mpicc >/dev/null && command -v apt-get >/dev/null; then
    apt_install openmpi-bin libopenmpi-dev || echo "setup: going on without MPI and its examples." >&2
fi
# Nodes of network namespaces, for the demonstration of a cluster and its tests, are connected by ip.
if ((EUID == 0)) && ! { command -v ip && command -v nsenter && command -v mount; } >/dev/null && command -v apt-get >/dev/null; then
    apt_install iproute2 util-linux mount || echo "setup: going on without iproute2: no cluster on this machine." >&2
fi
# A second MPI library, beside the first, and Fortran are for tests.
if ((EUID == 0)) && ! { command -v mpicc.mpich && command -v gfortran; } >/dev/null && command -v apt-get >/dev/null; then
    apt_install mpich libmpich-dev gfortran || echo "setup: going on without MPICH and Fortran: their tests will be skipped." >&2
fi
# So are C++ and what build systems look for libraries with.
if ((EUID == 0)) && ! { command -v g++ && command -v cmake && command -v pkg-config; } >/dev/null && command -v apt-get >/dev/null; then
    apt_install g++ cmake pkg-config || echo "setup: going on without C++, CMake and pkg-config: their tests will be skipped." >&2
fi
# OpenMP as clang builds it, and a BLAS on OpenMP, are for tests.
if ((EUID == 0)) && ! command -v clang >/dev/null && command -v apt-get >/dev/null; then
    apt_install clang libomp-dev libopenblas-openmp-dev || echo "setup: going on without clang: its tests will be skipped." >&2
fi
# A browser without a window, for the tests of the agent's page.
if ((EUID == 0)) && ! { command -v chromium-headless-shell || command -v chromium; } >/dev/null && command -v apt-get >/dev/null; then
    apt_install chromium-headless-shell || echo "setup: going on without Chromium: its tests will be skipped." >&2
fi
# systemd is for the test of the unit file, the shells for those of completion.
if ((EUID == 0)) && ! { command -v systemd-analyze && command -v zsh && command -v fish; } >/dev/null && command -v apt-get >/dev/null; then
    apt_install systemd zsh fish || echo "setup: going on without systemd and other shells: their tests will be skipped." >&2
fi
# libFuzzer and the sanitizers of clang are for fuzzing.
has_fuzzer() { [[ -n $(find "$(clang -print-resource-dir 2>/dev/null)/lib" -name 'libclang_rt.fuzzer*' 2>/dev/null) ]]; }
if ((EUID == 0)) && ! has_fuzzer && command -v apt-get >/dev/null; then
    apt_install libclang-rt-dev || echo "setup: going on without libFuzzer: the native part is not fuzzed." >&2
fi
extras=dev
if command -v mpicc >/dev/null; then extras+=,mpi; fi

# A half-made environment (venv stops midway without ensurepip) or one whose interpreter has gone is made anew.
has_pip || "$python" -m venv --clear "$venv"

# Prometheus and etcd are for tests as well, and only unpacked: their packages would start services.
if ((EUID == 0)) && ! [ -x "$venv/bin/prometheus" ] && ! command -v prometheus >/dev/null && command -v apt-get >/dev/null; then
    unpack prometheus prometheus promtool || echo "setup: going on without Prometheus: its tests will be skipped." >&2
fi
if ((EUID == 0)) && ! [ -x "$venv/bin/etcd" ] && ! command -v etcd >/dev/null && command -v apt-get >/dev/null; then
    unpack etcd-server etcd || echo "setup: going on without etcd: its tests will be skipped." >&2
fi

echo "setup: installing drom and its tools into $venv" >&2
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
"$venv/bin/python" -m pip install --quiet -c constraints.txt -e ".[$extras]"
# CRIU saves fillers and restores them; make criu builds it.
scripts/criu.sh --report >&2
