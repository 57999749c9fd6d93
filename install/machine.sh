# shellcheck shell=bash
# What this machine is and has: asked, never changed. Sourced by install.sh. Weak spot: which mounted file system is meant for logs is a guess by its
# name and emptiness; --disks says it for certain, and what was guessed is printed.

SYSTEM_PLACES="/ /boot /home /var /usr /opt /tmp /root /media /run /etc /dev /proc /sys /snap /nix"
LOCAL_FILE_SYSTEMS="ext4,xfs,btrfs,ext3,f2fs"

# system_python: one that the service's user may run, too: not one below a home directory, whatever PATH says.
system_python() {
    local python
    for python in /usr/bin/python3 /usr/bin/python3.{14,13,12,11} /usr/local/bin/python3{,.14,.13,.12,.11}; do
        if [ -x "$python" ] && python_is_new_enough "$python"; then echo "$python"; return; fi
    done
    return 1
}

# system_java: the directory that is JAVA_HOME, of a Java that units find without a user's environment.
system_java() {
    local java version
    for java in /usr/bin/java /usr/local/bin/java /usr/lib/jvm/*/bin/java; do
        [ -x "$java" ] || continue
        version=$("$java" -version 2>&1 | sed -nE '1s/.*version "(1\.)?([0-9]+).*/\2/p')
        if [ "${version:-0}" -ge "$JAVA_MIN" ]; then
            java=$(readlink -f "$java")
            echo "${java%/bin/java}"
            return
        fi
    done
    return 1
}

# installed_prefix: where an installation is, by the link of its command; nothing if there is none.
installed_prefix() {
    local target
    target=$(readlink "$COMMAND_LINK" 2>/dev/null) || return 1
    [[ $target == */current/.venv/bin/millrace ]] && echo "${target%/current/.venv/bin/millrace}"
}

# release_at LINK: the name of the release that PREFIX/LINK points at.
release_at() {
    local target
    target=$(readlink "$PREFIX/$1" 2>/dev/null) && echo "${target##*/}"
}

systemd_runs() { [ -d /run/systemd/system ]; }
# box_is_active: also one that is on its way: the target is active only once all serve, and a box whose cluster is not there yet waits for that.
box_is_active() { systemd_runs && systemctl -q is-active millrace.target millrace-supervisor.service; }

# machine_address: the one that packets to elsewhere leave from, else any global one.
machine_address() {
    local found=
    has ip && found=$(ip -o route get 192.0.2.1 2>/dev/null | sed -nE 's/.* src ([0-9.]+).*/\1/p')
    [ -n "$found" ] || found=$(hostname -I 2>/dev/null | tr ' ' '\n' | grep -m 1 .)
    [ -n "$found" ] && echo "$found"
}

# has_address ADDRESS: whether a process of this machine may listen on it.
has_address() {
    local address
    case $1 in 0.0.0.0 | :: | 127.* | ::1 | localhost) return ;; esac
    address=$(getent ahosts "$1" | awk 'NR == 1 { print $1 }')
    hostname -I 2>/dev/null | tr ' ' '\n' | grep -qxF "${address:-$1}"
}

is_system_place() {
    local place
    [ "$1" = / ] && return
    for place in $SYSTEM_PLACES; do
        [ "$place" != / ] && [[ $1/ == "$place"/* ]] && return
    done
    return 1
}

# is_log_directory DIR: some broker has written its name there. is_empty_directory DIR: but for what mkfs makes.
is_log_directory() { timeout 5 test -f "$1/meta.properties"; }
is_empty_directory() { [ -z "$(timeout 5 find "$1" -mindepth 1 -maxdepth 1 ! -name lost+found -print -quit 2>&1)" ]; }

# log_disks_among: of the lines "TARGET SOURCE OPTIONS" (findmnt's) those file systems that are surely meant: writable, no part of the system,
# empty or known as log directory; each source once.
log_disks_among() {
    local target source options seen=' '
    while read -r target source options; do
        if is_system_place "$target" || ! is_plain_path "$target" || [[ $target == */.* || ,$options, == *,ro,* || $seen == *" $source "* ]]; then continue; fi
        if is_log_directory "$target" || is_empty_directory "$target"; then
            echo "$target"
            seen="$seen$source "
        fi
    done
}

find_log_disks() { findmnt -rno TARGET,SOURCE,OPTIONS -t "$LOCAL_FILE_SYSTEMS" | sort | log_disks_among; }

# existing_part PATH: itself, or the nearest directory above it that is there.
existing_part() {
    local path=$1
    while [ ! -e "$path" ]; do path=${path%/*}; path=${path:-/}; done
    echo "$path"
}

# file_system_of DIR: "DEVICE TYPE FREE_BYTES" of the file system where DIR is or will be; fails if its disk does not answer.
file_system_of() {
    local place
    place=$(existing_part "$1")
    timeout 5 stat -c %d "$place" && timeout 5 findmnt -nro FSTYPE -T "$place" && timeout 5 df --output=avail -B1 "$place" | tail -n 1
}
