# shellcheck shell=bash
# What may be wrong with the log directories. Sourced by install.sh; part of the preflight. Every question to a disk has a deadline.

DISK_MIB_LITTLE=1024
DISK_MIB_MIN=128

# check_disks DIR…: each, and what is wrong between them.
check_disks() {
    local directory real device kind bytes words
    local -A seen=() devices=()
    for directory in "$@"; do
        if ! is_plain_path "$directory"; then problem disks "$directory: it must be an absolute path of letters, digits and ._+-"; continue; fi
        real=$(timeout 5 realpath -m "$directory") || real=$directory
        if [ -n "${seen[$real]:-}" ]; then problem disks "$directory is given twice$([ "${seen[$real]}" = "$directory" ] || echo " (${seen[$real]} is the same directory)"); give each disk's directory once"; continue; fi
        seen[$real]=$directory
        if is_unmounted "$directory" && has_unit "$directory"; then warning disks "$directory is not mounted; its log-writer waits for it"; continue; fi
        if is_unmounted "$directory"; then problem disks "$directory is to be mounted by /etc/fstab, and is not: mount it first, or records go to the root file system"; continue; fi
        if ! words=$(file_system_of "$directory"); then problem disks "$directory: its disk does not answer within 5 s; look at the kernel's log (dmesg)"; continue; fi
        read -r device kind bytes < <(paste -sd ' ' <<<"$words")
        check_contents "$directory" || continue
        check_space "$directory" "$kind" "$bytes"
        if [ -n "${devices[$device]:-}" ]; then warning disks "$directory and ${devices[$device]} are one file system: it fails, and fills up, for both at once"; fi
        devices[$device]=$directory
    done
}

CHOSEN_UNCHECKED=

# check_chosen DIR…: those that --disks names and that are not served yet, by the rule of `millrace disk add`; of other files `check_contents` speaks.
# Without a Python it waits for one.
check_chosen() {
    local directory python lines line chosen=() served=()
    CHOSEN_UNCHECKED=
    [ "$DISKS_FROM" = given ] || return 0
    if ! python=$(system_python); then CHOSEN_UNCHECKED=1; return 0; fi
    for directory in "$@"; do
        is_plain_path "$directory" || continue # check_disks says so
        if has_unit "$directory"; then served+=(--served "$directory"); else chosen+=("$directory"); fi
    done
    [ ${#chosen[@]} -gt 0 ] || return 0
    if ! lines=$(PYTHONPATH=$ROOT timeout 20 "$python" -B -P -m appliance.runtime.new_disk_checks --state "$STATE_DIRECTORY" --force other-files "${FORCE[@]}" "${served[@]}" "${chosen[@]}" 2>&1); then
        problem disks "${lines##*error: }"
        return 0
    fi
    [ -n "$lines" ] || return 0
    while read -r line; do problem disks "$line"; done <<<"$lines"
}

# is_forced REASON: --force names it.
is_forced() { [[ ,$(IFS=,; echo "${FORCE[*]}"), == *",$1,"* ]]; }

# has_unit DIR: an installation serves it, and its units start with its mount only.
has_unit() { [ "$(installed_prefix)" = "$PREFIX" ] && grep -qsrF "$1" /etc/systemd/system/millrace-log-writer@*.service.d; }

# is_unmounted DIR: /etc/fstab has a mount for it, or for a directory above it, that is not there.
is_unmounted() {
    local target
    while read -r target; do
        if [[ $1/ == "$target"/* && $target != / ]] && ! mountpoint -q "$target"; then return; fi
    done < <(findmnt -nro TARGET --fstab 2>/dev/null)
    return 1
}

check_space() {
    local words
    words="$1 on $2, $(gib "$3") free ($DISKS_FROM)"
    if [ "$3" -lt $((DISK_MIB_MIN * 1048576)) ]; then problem disks "$words: free some space"
    elif [ "$3" -lt $((DISK_MIB_LITTLE * 1048576)) ]; then warning disks "$words: that is little"
    elif ! timeout 5 test -w "$(existing_part "$1")"; then problem disks "$words: it cannot be written to"
    else
        case $2 in
            ext4 | xfs | btrfs | ext3 | f2fs) if [ "$(stat -c %d "$(existing_part "$1")")" = "$(stat -c %d /)" ]; then warning disks "$words: the system's own disk"; else ok disks "$words"; fi ;;
            tmpfs | ramfs) warning disks "$words: its records are gone after a reboot" ;;
            *) warning disks "$words: tried are ext4 and xfs on local disks" ;;
        esac
    fi
}

# check_contents DIR: empty, ours, or a log directory that is given to us.
check_contents() {
    local foreign
    if [ ! -e "$1" ]; then return; fi
    if [ ! -d "$1" ]; then problem disks "$1 is no directory"; return 1; fi
    if [ ! -r "$1" ]; then warning disks "$1: only root can look into it"; return 1; fi
    is_empty_directory "$1" && return
    if ! is_log_directory "$1"; then
        if is_forced other-files; then return; fi
        problem disks "$1 is not empty and no log directory (it has no meta.properties); choose another, or empty it$([ "$DISKS_FROM" != given ] || echo "; to use it all the same: --force other-files")"
        return 1
    fi
    foreign=$(timeout 20 find "$1" -maxdepth 2 -mindepth 1 ! -user "$SYSTEM_USER" ! -name lost+found -print -quit 2>&1)
    if [ -n "$foreign" ]; then
        problem disks "$1 is a log directory with files of another user ($foreign): stop who uses it, then chown -R $SYSTEM_USER:$SYSTEM_USER $1 (make the user first: useradd -r $SYSTEM_USER)"
        return 1
    fi
}
