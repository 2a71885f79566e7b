#!/usr/bin/env bash
# Unpack the Slurm of other releases of Debian: scripts/slurm_new.sh SUITE... fills build/slurm-new/SUITE, a folder to chroot into.
# apt-get fetches the packages from this machine's mirror of Debian, with lists and a state of its own: nothing is installed. What
# cannot be fetched is named in a sentence, and its tests are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

top=$PWD/build/slurm-new
keys=/usr/share/keyrings/debian-archive-keyring.gpg
packages=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge libslurm-dev libgomp1 libpam-modules bash dash coreutils util-linux)

skip() { # SENTENCE
    echo "slurm-new: $*; the tests with that Slurm are skipped." >&2
}

fetch() { # SUITE FOLDER: download the packages of a suite with all that they need
    local state=$2/apt
    mkdir -p "$state"/{lists,cache/archives/partial,etc}
    : >"$state/status"
    echo "deb [signed-by=$keys] $mirror $1 main" >"$state/etc/sources.list"
    local options=(-o "Dir::State=$state" -o "Dir::State::Lists=$state/lists" -o "Dir::State::status=$state/status"
        -o "Dir::Cache=$state/cache" -o "Dir::Etc::sourcelist=$state/etc/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o Dir::Etc::preferencesparts=/dev/null -o APT::Sandbox::User=root -o Acquire::Retries=2 -o APT::Update::Error-Mode=any)
    apt-get "${options[@]}" update && apt-get "${options[@]}" install --download-only --no-install-recommends -y "${packages[@]}"
}

unpack() { # FOLDER: unpack what was downloaded as a root folder, and name the programs and users that packages' scripts would
    local root=$1/unpacked name tools archive
    mkdir -p "$root"/{usr/{bin,sbin,lib,lib64},etc,proc,sys,dev,run,tmp,var}
    for name in bin sbin lib lib64; do ln -s "usr/$name" "$root/$name"; done
    for archive in "$1"/apt/cache/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$archive" |
            tar -x -C "$root" --keep-directory-symlink --exclude='./usr/share/doc/*' --exclude='./usr/share/man/*'
    done
    ln -sf dash "$root/usr/bin/sh"
    tools=("$root"/usr/sbin/*-wlm)
    for name in "${tools[@]}"; do ln -sf "${name##*/}" "${name%-wlm}"; done
    touch "$root"/etc/{passwd,group,hosts} # the tests mount this machine's there
    printf '%s: files\n' passwd group hosts >"$root/etc/nsswitch.conf"
    mkdir -p "$root/etc/pam.d"
    # slurmd reads the environment of users with su
    printf '%s required pam_permit.so\n' auth account password session >"$root/etc/pam.d/other"
    for name in su su-l; do ln -sf other "$root/etc/pam.d/$name"; done
    mkdir "$1/include"
    ln -s ../root/usr/include/slurm "$1/include/slurm"
    mv "$root" "$1/root"
}

mirror=
if command -v apt-get >/dev/null; then
    mirror=$(apt-get indextargets --format "\$(SITE) \$(ORIGIN)" 'Created-By: Packages' | sed -n 's|^\(.*/debian/\{0,1\}\) Debian$|\1|p' | sort -u | head -n 1)
fi
for suite in "$@"; do
    folder=$top/$suite
    [[ -d $folder/root ]] && continue
    if ((EUID != 0)); then
        skip "Slurm of Debian's $suite takes root's rights: run this as root"
        continue
    elif [[ -z $mirror || ! -e $keys ]]; then
        skip "Slurm of Debian's $suite needs apt-get with a mirror of Debian and the package debian-archive-keyring"
        continue
    fi
    rm -rf "$folder"
    mkdir -p "$folder"
    echo "slurm-new: fetching Slurm of Debian's $suite" >&2
    set +e # in a condition, -e would have no effect within the functions
    (
        set -e
        fetch "$suite" "$folder"
        unpack "$folder"
    ) </dev/null >"$folder/log" 2>&1
    failed=$?
    set -e
    rm -rf "$folder"/{apt,unpacked}
    if ((failed)); then
        skip "Slurm of Debian's $suite could not be fetched ($folder/log has apt-get's output)"
    fi
done
