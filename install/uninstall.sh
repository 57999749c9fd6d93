# shellcheck shell=bash
# Removes the program from this machine and keeps the user's data: records, state, settings, and the user that owns them. Sourced by install.sh.

uninstall() {
    local path
    installed_prefix >/dev/null || [ -e "$PREFIX/current" ] || [ -d "$PREFIX/releases" ] || die "nothing is installed in $PREFIX"
    read_record
    mapfile -t DISKS < <(read_options "$ROOT" "$SETTINGS_FILE" && option_values disk)
    say "this stops Millrace and removes its program; data, state, settings and the users $SYSTEM_USER and $NETWORK_USER stay"
    consent "go on?"
    if systemd_runs; then
        systemctl -q disable --now millrace.target 2>/dev/null || true
        rm -f /etc/systemd/system/millrace.target.wants/millrace-mirror@*.service
        systemctl stop 'millrace-*' millrace.slice 2>/dev/null || true # the slice would stay, empty, after its file is gone
        did "stopped millrace.target"
    fi
    "$PREFIX/current/.venv/bin/millrace" units remove >/dev/null 2>&1 || remark "what 'millrace units apply' made is still in /etc/systemd/system/millrace*.d"
    unset "RECORDED[$SETTINGS_FILE]"
    while read -r path; do remove_placed "$path"; done < <(printf '%s\n' "${!RECORDED[@]}" | sort)
    ! systemd_runs || systemctl daemon-reload
    ! has udevadm || udevadm control --reload 2>/dev/null || true
    find /dev/shm -maxdepth 1 -name 'millrace.*' -user "$NETWORK_USER" -delete 2>/dev/null || true # of processes that were killed
    rm -f "$COMMAND_LINK"
    remove_manual
    rm -rf "$PREFIX/releases" "$PREFIX/current" "$PREFIX/previous" "$PREFIX/installed" "$PREFIX/open_logs" "$RUNTIME_DIRECTORY"
    rmdir "$PREFIX" 2>/dev/null || true
    did "removed $PREFIX"
    for path in "${REMARKS[@]}"; do say "remark: $path"; done
    cat >&2 <<REPORT
Kept: records in ${DISKS[*]:-the log directories}, state in $STATE_DIRECTORY, settings in $SETTINGS_FILE, the users $SYSTEM_USER and $NETWORK_USER, kernel settings until the next start.
To install again with all of it: sudo ./install.sh. To remove it for ever: sudo rm -r ${DISKS[*]} $STATE_DIRECTORY ${SETTINGS_FILE%/*}; sudo userdel millrace-mirror; sudo userdel $NETWORK_USER; sudo userdel $SYSTEM_USER
REPORT
}
