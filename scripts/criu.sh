#!/usr/bin/env bash
# Provide CRIU 4.1 or newer and runc, which save jobs and restore them: `make criu`. A CRIU that is installed and new enough is used;
# otherwise root builds one as build/criu/criu, from the source package of Debian's trixie. `scripts/criu.sh --report` changes nothing
# and says in one sentence how this machine can save jobs.
set -euo pipefail
cd "$(dirname "$0")/.."

version=4.1.1
checksum=f80a66cb3726bb2116266d4759ce3bcbfab7abdb6b6d430bf20dd41911717afe
folder=$PWD/build/criu
keys=/usr/share/keyrings/debian-archive-keyring.gpg
packages=(gcc make pkg-config libprotobuf-dev libprotobuf-c-dev protobuf-c-compiler protobuf-compiler libnl-3-dev libnl-route-3-dev
    libcap-dev libnet1-dev libgnutls28-dev libnftables-dev uuid-dev libdrm-dev libbsd-dev libaio-dev)

fail() {
    echo "criu: $*" >&2
    exit 1
}

is_new() { # PROGRAM: return whether it is CRIU 4.1 or newer
    local found
    found=$("$1" --version 2>/dev/null | sed -n 's/^Version: //p') && [[ -n $found ]] &&
        [[ $(printf '%s\n' 4.1 "$found" | sort -V | head -n 1) == 4.1 ]]
}

found() { # print the path of a CRIU that is new enough
    local program
    for program in "$(command -v criu)" "$folder/criu"; do
        if [[ -n $program ]] && is_new "$program"; then
            echo "$program"
            return
        fi
    done
    return 1
}

report() {
    local criu
    if ! criu=$(found); then
        echo "criu: no CRIU 4.1 or newer is installed: fillers are saved only by their own program's checkpoint (make criu builds CRIU)."
    elif ((EUID != 0)); then
        echo "criu: $criu is there; only root can save and restore other users' jobs with it."
    elif ! "$criu" check >/dev/null 2>&1; then
        echo "criu: '$criu check' fails on this kernel: fillers are saved only by their own program's checkpoint."
    elif ! ((0x$(sed -n 's/^CapEff:\t//p' /proc/self/status) >> 24 & 1)); then
        echo "criu: root lacks CAP_SYS_RESOURCE here: CRIU saves root's own jobs only, others are saved only by their own program's checkpoint."
    elif command -v runc >/dev/null; then
        echo "criu: this machine can save fillers in containers (runc), as processes (CRIU) and by their own program's checkpoint."
    else
        echo "criu: this machine can save fillers as processes (CRIU) and by their own program's checkpoint; containers need runc."
    fi
}

install_packages() { # PACKAGE...
    echo "criu: installing $*" >&2
    DEBIAN_FRONTEND=noninteractive apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

build() {
    local apt=$folder/apt mirror=$1
    mkdir -p "$apt"/{lists,cache/archives/partial,etc}
    : >"$apt/status"
    echo "deb-src [signed-by=$keys] $mirror trixie main" >"$apt/etc/sources.list"
    local options=(-o "Dir::State=$apt" -o "Dir::State::Lists=$apt/lists" -o "Dir::State::status=$apt/status"
        -o "Dir::Cache=$apt/cache" -o "Dir::Etc::sourcelist=$apt/etc/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o Dir::Etc::preferencesparts=/dev/null -o APT::Sandbox::User=root -o Acquire::Retries=2 -o APT::Update::Error-Mode=any)
    cd "$folder"
    apt-get "${options[@]}" update
    apt-get "${options[@]}" source --download-only --tar-only "criu=$version-1"
    echo "$checksum  criu_$version.orig.tar.xz" | sha256sum --check
    tar -xf "criu_$version.orig.tar.xz"
    nice make -C "criu-$version" -j"$(nproc)" criu WERROR=0 NETWORK_LOCK_DEFAULT=NETWORK_LOCK_NFTABLES
    install "criu-$version/criu/criu" "$folder/criu"
    rm -rf "$apt" "criu-$version" "criu_$version.orig.tar.xz"
}

logged() { # SENTENCE COMMAND...: run the command; if it fails, show the end of its output
    local status sentence=$1 log
    shift
    log=$(mktemp)
    set +e # in a condition, -e would have no effect within the functions
    (
        set -e
        "$@"
    ) </dev/null >"$log" 2>&1
    status=$?
    set -e
    if ((status)); then
        tail -n 20 "$log" >&2
        fail "$sentence ($log has the output)."
    fi
    rm -f "$log"
}

if [[ ${1:-} == --report ]]; then
    report
    exit
fi
if found >/dev/null && command -v runc >/dev/null; then
    report
    exit
fi
((EUID == 0)) || fail "this machine lacks CRIU 4.1 or newer, or runc; run this as root, or install them."
command -v apt-get >/dev/null || fail "this machine lacks CRIU 4.1 or newer, or runc, and apt-get to get them: install them."
command -v runc >/dev/null || logged "apt-get could not install runc" install_packages runc
if ! found >/dev/null; then
    mirror=$(apt-get indextargets --format "\$(SITE) \$(ORIGIN)" 'Created-By: Packages' | sed -n 's|^\(.*/debian/\{0,1\}\) Debian$|\1|p' | sort -u | head -n 1)
    [[ -n $mirror && -e $keys ]] || fail "building CRIU needs apt-get with a mirror of Debian and the package debian-archive-keyring."
    logged "apt-get could not install what CRIU is built with" install_packages "${packages[@]}"
    mkdir -p "$folder"
    echo "criu: building CRIU $version in build/criu (a few minutes)" >&2
    logged "CRIU $version could not be built" build "$mirror"
fi
report
