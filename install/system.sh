# shellcheck shell=bash
# What a release puts outside of PREFIX: units, user, directories, kernel settings, disk rules, the command. Sourced by install.sh. Units' drop-ins that
# follow from the settings (ports, disks, instances) are made by `millrace units apply`, which keeps them in step while the box runs.

# target_of NAME: where a file of the folder systemd goes; nothing for what stays in the release.
target_of() {
    case $1 in
        *.service | *.socket | *.target | *.slice | *.path | *.timer | *.d/*.conf) echo "/etc/systemd/system/$1" ;;
        tmpfiles.conf) echo /etc/tmpfiles.d/millrace.conf ;;
        sysusers.conf) echo /etc/sysusers.d/millrace.conf ;;
        sysctl.conf) echo /etc/sysctl.d/60-millrace.conf ;;
    esac
}

# fill_in FILE: its text with the names of this installation.
fill_in() {
    sed -e "s|@PREFIX@|$PREFIX|g" -e "s|@CURRENT@|$PREFIX/current|g" -e "s|@PYTHON@|$PREFIX/current/.venv/bin/python|g" \
        -e "s|@SETTINGS@|$SETTINGS_FILE|g" -e "s|@STATE@|$STATE_DIRECTORY|g" -e "s|@RUNTIME@|$RUNTIME_DIRECTORY|g" \
        -e "s|@USER@|$SYSTEM_USER|g" -e "s|@JAVA_HOME@|$(system_java || true)|g" "$1"
}

# place_system_files RELEASE: its units and their like, with the rule for the log disks; and nothing of an earlier release that it does not have.
place_system_files() {
    local source name target
    while read -r source; do
        name=${source#"$1/systemd/"}
        target=$(target_of "$name")
        [ -n "$target" ] || continue
        fill_in "$source" >"$SCRATCH/file"
        place "$SCRATCH/file" "$target" "for changes of your own: systemctl edit ${name%%/*}" || return 1
    done < <(find "$1/systemd" -maxdepth 2 -type f | sort)
    disk_rules "${DISKS[@]}" >"$SCRATCH/file"
    place "$SCRATCH/file" /etc/udev/rules.d/60-millrace.rules || return 1
    acl_drop_in "$1" >"$SCRATCH/file"
    [ ! -s "$SCRATCH/file" ] || place "$SCRATCH/file" /etc/systemd/system/millrace-zookeeper.service.d/30-skip-acl.conf || return 1
    remove_gone_files
}

# acl_drop_in RELEASE: what ZooKeeper's unit needs to run a release that has no secret (0.1) on a tree whose nodes have ACLs; nothing for later ones.
acl_drop_in() {
    [ ! -f "$1/appliance/base/zookeeper_access.py" ] || return 0
    printf '[Service]\n# This release knows no ACLs, and one that does has been here. An upgrade removes this file.\nEnvironment=JAVA_TOOL_OPTIONS=-Dzookeeper.skipACL=yes\n'
}

# place_secret: the secret of the ensemble, for the service alone. One that is there stays.
place_secret() {
    local path=$STATE_DIRECTORY/zookeeper.secret
    if [ -z "$SECRET_FILE" ] || [ -e "$path" ]; then return 0; fi
    [ -d "$STATE_DIRECTORY" ] || install -d -m 0750 -o "$SYSTEM_USER" -g "$SYSTEM_USER" "$STATE_DIRECTORY" || return 1
    install -m 0600 -o "$SYSTEM_USER" -g "$SYSTEM_USER" "$SECRET_FILE" "$path.part" && mv -f "$path.part" "$path" || return 1
    did "wrote $path"
}

# disk_of DEVICE: the name of the whole disk that a block device is a part of.
disk_of() { lsblk -nrdo PKNAME "$1" 2>/dev/null | grep . || lsblk -nrdo KNAME "$1" 2>/dev/null; }

# disk_rules DIR…: udev's rules for the disks of these directories: by the file system's id, because names of devices change. Never for the disk that
# the root file system is on: other programs read it, too, and need read-ahead.
disk_rules() {
    local directory source uuid root_disk
    echo "# Log disks of Millrace, written by install.sh: a scheduler that knows I/O classes (none ignores them), no reading ahead by the kernel"
    echo "# (log-readers do that themselves, and a page that is still on its way would stop who serves clients)."
    root_disk=$(disk_of "$(findmnt -nro SOURCE -T /)" || true)
    for directory in "$@"; do
        read -r source uuid < <(findmnt -nro SOURCE,UUID -T "$(existing_part "$directory")") || true
        [ -n "${uuid:-}" ] || uuid=$(blkid -o value -s UUID "$source" 2>/dev/null) || true
        if [ -z "${uuid:-}" ] || [ "$(disk_of "$source" || true)" = "$root_disk" ]; then continue; fi
        echo "ACTION==\"add|change\", SUBSYSTEM==\"block\", ENV{DEVTYPE}==\"disk\", ENV{ID_FS_UUID}==\"$uuid\", ATTR{queue/read_ahead_kb}=\"0\", ATTR{queue/scheduler}=\"mq-deadline\""
        echo "ACTION==\"add|change\", SUBSYSTEM==\"block\", ENV{DEVTYPE}==\"partition\", ENV{ID_FS_UUID}==\"$uuid\", ATTR{../queue/read_ahead_kb}=\"0\", ATTR{../queue/scheduler}=\"mq-deadline\""
    done
}

# has_changed PATTERN: whether a file whose path matches it was written or removed.
has_changed() {
    local path
    for path in "${CHANGED_FILES[@]}"; do
        # shellcheck disable=SC2053  # a pattern is meant
        if [[ $path == $1 ]]; then return; fi
    done
    return 1
}

# apply_system_files: tell the kernel, udev and systemd of them. What a container does not let us set is a remark.
apply_system_files() {
    if has_changed '*/sysusers.d/*' || ! getent passwd "$SYSTEM_USER" >/dev/null || ! getent passwd "$NETWORK_USER" >/dev/null; then
        systemd-sysusers /etc/sysusers.d/millrace.conf || return 1
        did "made the users of the service"
    fi
    systemd-tmpfiles --create /etc/tmpfiles.d/millrace.conf || return 1
    if has_changed '*/sysctl.d/*' && [ -e /etc/sysctl.d/60-millrace.conf ]; then
        sysctl -q -p /etc/sysctl.d/60-millrace.conf 2>"$SCRATCH/sysctl" || remark "not every kernel setting of /etc/sysctl.d/60-millrace.conf could be set: $(tail -n 1 "$SCRATCH/sysctl")"
    fi
    if has_changed '*/udev/*' && has udevadm; then
        udevadm control --reload && udevadm trigger --action=change --subsystem-match=block || remark "udev did not take the rules of the log disks; they count after a reboot"
    fi
}

# make_directories: those of the log disks, for the service's user. What is in them is not touched.
make_directories() {
    local directory
    for directory in "${DISKS[@]}"; do
        if is_unmounted "$directory"; then continue; fi # the place where it will be mounted must stay closed to the service
        if [ ! -d "$directory" ]; then
            mkdir -p "$directory" || return 1
            did "made $directory"
        fi
        if [ "$(stat -c %U:%G "$directory")" != "$SYSTEM_USER:$SYSTEM_USER" ]; then
            chown "$SYSTEM_USER:$SYSTEM_USER" "$directory" && chmod 0750 "$directory" || return 1
            did "gave $directory to $SYSTEM_USER"
        fi
    done
}

# network_user RELEASE: the user of the processes that face the network. Up to 0.1 it is that of all.
network_user() { sed -n 's/^User=//p' "$1/systemd/millrace-ingest@.service"; }

# strangers_things USER: what a release whose network_user is USER could not use, because one with other users has left it: of ingest and console in
# the state directory, and in shared memory. The directory itself may be the service's, too.
strangers_things() {
    local box part
    for part in ingest console; do [ ! -d "$STATE_DIRECTORY/$part" ] || find "$STATE_DIRECTORY/$part" -mindepth 1 ! -user "$1"; done
    box=$(option_values console_socket) box=${box#"$RUNTIME_DIRECTORY/"} box=${box%%/*}
    find /dev/shm -maxdepth 1 -regextype posix-extended -regex "/dev/shm/millrace\\.$box\\.[a-z]+\\.(acceptor|ingest|console)(@.*)?" ! -user "$1"
}

# closed_logs: the log directories that the group cannot read. Earlier releases wrote for their user alone; searches run as network_user.
# A directory in which all can be read is noted, because the walk may take long; a disk that does not answer, or cannot be written to, is left out.
closed_logs() {
    local directory mark found
    for directory in "${DISKS[@]}"; do
        if is_unmounted "$directory" || ! timeout 5 test -w "$directory" || ! mark=$(timeout 5 stat -c '%d:%i %n' "$directory"); then continue; fi
        if grep -qsxF "$mark" "$PREFIX/open_logs"; then continue; fi
        if found=$(timeout 20 find "$directory" -maxdepth 2 -mindepth 1 -user "$SYSTEM_USER" ! -perm -g=r -print -quit 2>/dev/null) && [ -z "$found" ]; then
            echo "$mark" >>"$PREFIX/open_logs"
        elif [ -n "$found" ]; then
            echo "$directory"
        fi
    done
}

# hand_over USER: to a release whose network_user is USER. Nothing of the box may run.
hand_over() {
    local path part
    while read -r path; do
        case $path in /dev/shm/*) rm -f "$path" ;; esac
    done < <(strangers_things "$1")
    for part in ingest console; do [ ! -d "$STATE_DIRECTORY/$part" ] || chown -RhP "$1:$SYSTEM_USER" "$STATE_DIRECTORY/$part" || return 1; done
    if [ "$1" != "$SYSTEM_USER" ]; then
        while read -r path; do
            timeout 300 find "$path" -xdev -user "$SYSTEM_USER" ! -perm -g=r -exec chmod g+rX {} + || remark "searches cannot read all logs in $path yet; run install.sh again when its disk answers"
        done < <(closed_logs)
    fi
    did "gave what ingest and console write to $1"
}

link_command() {
    [ "$(readlink "$COMMAND_LINK")" = "$PREFIX/current/.venv/bin/millrace" ] && return
    mkdir -p "${COMMAND_LINK%/*}"
    ln -sfn "$PREFIX/current/.venv/bin/millrace" "$COMMAND_LINK.part" && mv -Tf "$COMMAND_LINK.part" "$COMMAND_LINK" || return 1
    did "linked $COMMAND_LINK"
}

# place_manual: man pages and completion, from the parser of the release; a box runs without them.
place_manual() {
    local command=$PREFIX/current/.venv/bin/millrace
    [ ! -x "$command" ] || "$command" manual "$SHARE" >/dev/null 2>&1 || remark "there are no man pages and no completion: 'millrace manual $SHARE' failed"
}

remove_manual() {
    rm -f "$SHARE"/bash-completion/completions/millrace "$SHARE"/zsh/site-functions/_millrace "$SHARE"/fish/vendor_completions.d/millrace.fish
    rm -f "$SHARE"/man/man1/millrace.1 "$SHARE"/man/man1/millrace-*.1
}
