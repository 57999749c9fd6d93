# shellcheck shell=bash
# From one release to another, and back by itself if the new one does not serve. Sourced by install.sh. Until `current` is turned nothing that runs has
# changed; after it everything is as one release says or as the other. A kill in between is mended by the next run.

STARTED_AT=0
MISSING_BEFORE= # processes that did not serve when the preflight looked
SERVED_BEFORE=  # whether the release before ran, and had served
WAITS_FOR=      # members of the boxes' ZooKeeper ensemble that are not there, where that is all that is amiss
MEMBERS_SECONDS=10
TARGET=
CURRENT_BEFORE=
PREVIOUS_BEFORE=

# switch_to VERSION: files, settings, `current`, restart, health; the old release again if any of them fails.
switch_to() {
    CURRENT_BEFORE=$(release_at current || true)
    PREVIOUS_BEFORE=$(release_at previous || true)
    if [ -n "$CURRENT_BEFORE" ] && box_is_active && [ -f "$PREFIX/releases/$CURRENT_BEFORE/.served" ]; then SERVED_BEFORE=1; fi
    if [ -n "$CURRENT_BEFORE" ]; then cp -p "$SETTINGS_FILE" "$SCRATCH/settings.before" 2>/dev/null || true; fi
    TARGET=$1
    trap 'trap "" INT TERM HUP; go_back "it was interrupted" || true; exit 1' INT TERM HUP
    if activate "$1" && is_healthy "$1"; then
        trap - INT TERM HUP
        [ -n "$WAITS_FOR" ] || touch "$PREFIX/releases/$1/.served"
        return
    fi
    trap - INT TERM HUP
    go_back "it did not serve"
    return 1
}

# activate VERSION: make it what runs. Restarts only what it must.
activate() {
    local release=$PREFIX/releases/$1 settings_before
    STARTED_AT=$SECONDS
    read_record
    settings_before=$(cat "$SETTINGS_FILE" 2>/dev/null)
    place "$release/.settings" "$SETTINGS_FILE" || return 1
    place_system_files "$release" || return 1
    if [ "$(release_at current)" != "$1" ]; then
        [ -z "$CURRENT_BEFORE" ] || point previous "$CURRENT_BEFORE" || return 1
        point current "$1" || return 1
        CHANGED_FILES+=("$PREFIX/current")
        did "$PREFIX/current is release $1"
    fi
    [ -z "$BUILT" ] || CHANGED_FILES+=("$release")
    write_record || return 1
    apply_system_files || return 1
    make_directories || return 1
    place_secret || return 1
    link_command || return 1
    place_manual
    apply_units || return 1
    if [ "$settings_before" != "$(cat "$SETTINGS_FILE")" ]; then CHANGED_FILES+=("$SETTINGS_FILE"); fi
    start_or_restart "$1"
}

# apply_units: what follows from the settings.
apply_units() {
    local line
    "$PREFIX/current/.venv/bin/millrace" units apply --config "$SETTINGS_FILE" >"$SCRATCH/units" || return 1
    while read -r line; do
        CHANGED_FILES+=("${line#* }")
        did "$line"
    done <"$SCRATCH/units"
    if has_changed '/etc/systemd/*'; then systemctl daemon-reload || return 1; fi
}

# start_or_restart VERSION: sockets stay open over a restart, unless they are what has changed.
start_or_restart() {
    local user
    user=$(network_user "$PREFIX/releases/$1")
    read_options "$PREFIX/releases/$1" "$SETTINGS_FILE" || return 1
    if ! systemctl -q is-enabled millrace.target 2>/dev/null; then
        systemctl -q enable millrace.target || return 1
        did "enabled millrace.target: it starts with the machine"
    fi
    [ "$user" != "$SYSTEM_USER" ] || rm -f "$PREFIX/open_logs" # it closes them again
    if [ -n "$(strangers_things "$user")" ] || { [ "$user" != "$SYSTEM_USER" ] && [ -n "$(closed_logs)" ]; }; then
        say "stopping: the processes change their users …"
        systemctl stop millrace.target 'millrace-*' && hand_over "$user" && order start || return 1
        did "stopped and started millrace.target"
    elif ! box_is_active; then
        if [ ${#CHANGED_FILES[@]} = 0 ] && [ -f "$PREFIX/releases/$1/.served" ]; then remark "the box is stopped; sudo systemctl start millrace.target starts it"; return; fi
        say "starting …"
        order start || return 1
        did "started millrace.target"
    elif has_changed '*.socket*'; then
        say "restarting, with new sockets …"
        systemctl stop millrace.target 'millrace-*' && order start || return 1
        did "stopped and started millrace.target"
    elif concerns_processes; then
        say "restarting …"
        order restart || return 1
        did "restarted millrace.target"
    fi
}

# concerns_processes: whether something has changed that a process sees only when it starts. Rules of udev and the kernel's settings count at once.
concerns_processes() {
    local path
    for path in "${CHANGED_FILES[@]}"; do
        case $path in /etc/udev/* | /etc/sysctl.d/* | /etc/tmpfiles.d/* | /etc/sysusers.d/*) ;; *) return ;; esac
    done
    return 1
}

# order start|restart: the whole box. Units that try again and again are not waited for longer than is_healthy would; nor is a box that waits for others.
order() {
    local answer=0 client
    timeout --foreground "$WAIT_SECONDS" systemctl "$1" millrace.target &
    client=$!
    while kill -0 $client 2>/dev/null; do
        if waits_for_others; then
            kill $client 2>/dev/null || true # systemd goes on with it
            wait $client || true
            return 0
        fi
        sleep 0.2
    done
    wait $client || answer=$?
    [ $answer = 0 ] || [ $answer = 124 ]
}

# waits_for_others: whether the box has done what it can alone, and waits for members of its ensemble that are not there: those of boxes that are installed
# after it, or down. No other release or settings would serve then. Where the release before served it may take as long as a new release.
waits_for_others() {
    local patience=$MEMBERS_SECONDS
    [ -z "$SERVED_BEFORE" ] || patience=$WAIT_SECONDS
    WAITS_FOR=
    [ $((SECONDS - STARTED_AT)) -lt "$patience" ] || WAITS_FOR=$(members_waited_for)
    [ -n "$WAITS_FOR" ]
}

# members_waited_for: as in "members 2 and 3"; nothing where enough are there.
members_waited_for() { systemctl show --property=StatusText --value millrace-zookeeper.service 2>/dev/null | sed -nE 's/^waits for (members? .*) of the ZooKeeper ensemble.*/\1/p'; }

# is_healthy VERSION: every process serves, but for those that did not before (a disk that is away must not keep the box at its release), or the box waits for
# others. A box that was stopped stays stopped.
is_healthy() {
    local deadline=$((STARTED_AT + WAIT_SECONDS)) url socket answer
    WAITS_FOR=
    if ! box_is_active && [ -f "$PREFIX/releases/$1/.served" ] && [ ${#CHANGED_FILES[@]} = 0 ]; then return; fi
    read_options "$PREFIX/releases/$1" "$SETTINGS_FILE" || return 1
    url=$(readiness_url) socket=$(option_values console_socket)
    # shellcheck disable=SC2086  # words are meant
    until answer=$(ask_readiness "$socket" "$url" $MISSING_BEFORE); do
        if waits_for_others; then return; fi
        if [ $SECONDS -ge $deadline ]; then
            say "release $1 does not serve within $WAIT_SECONDS s: $answer"
            systemctl --no-pager --plain --no-legend list-units 'millrace*' | grep -v ' active ' >&2 || true
            return 1
        fi
        sleep 0.5
    done
}

# readiness_url: of the console, as the options that were read last say.
readiness_url() {
    local host
    host=$(option_values listen)
    case $host in 0.0.0.0 | '') host=127.0.0.1 ;; ::) host='[::1]' ;; *:*) host="[$host]" ;; esac
    echo "http://$host:$(port_of http 8080)/readyz"
}

# ask_readiness SOCKET URL [NAME…]: true when every process serves, but for those named; prints what is amiss otherwise. SOCKET is the console's Unix socket,
# which connections from elsewhere cannot keep busy; release 0.1 has none, and is asked by URL.
ask_readiness() {
    "$PREFIX/current/.venv/bin/python" -P -c '
import http.client, json, socket, sys, urllib.parse
path, url, *tolerated = sys.argv[1:]
address = urllib.parse.urlsplit(url)
console = http.client.HTTPConnection(address.hostname, address.port, timeout=5)
try:
    try:
        by_path = socket.socket(socket.AF_UNIX)
        by_path.settimeout(5)
        by_path.connect(path)
        console.sock = by_path
    except OSError:
        pass
    console.request("GET", "/readyz")
    response = console.getresponse()
    answer = response.read().decode(errors="replace")
except (OSError, http.client.HTTPException) as error:
    sys.exit(print(error) or 1)
if response.status != 200:
    try:
        missing = json.loads(answer)["missing"]
    except (ValueError, KeyError):
        sys.exit(print(answer) or 1)
    if not set(missing) <= set(tolerated):
        sys.exit(print(", ".join(f"{name} {state}" for name, state in missing.items())) or 1)
' "$@"
}

# go_back REASON: to the release and the settings before. A first installation has none, and is left for its owner to look at.
go_back() {
    local wanted=$CURRENT_BEFORE
    if [ -z "$wanted" ] || { [ "$wanted" = "$TARGET" ] && cmp -s "$SCRATCH/settings.before" "$SETTINGS_FILE"; }; then
        say "$1. Look: journalctl -u 'millrace*' -e; systemctl status 'millrace*'. To undo: sudo ./install.sh --uninstall"
        return 1
    fi
    say "$1: going back to release $wanted as it was …"
    cmp -s "$SCRATCH/settings.before" "$SETTINGS_FILE" || replace_file "$SCRATCH/settings.before" "$SETTINGS_FILE"
    [ ! -f "$SCRATCH/release-settings.before" ] || replace_file "$SCRATCH/release-settings.before" "$PREFIX/releases/$TARGET/.settings"
    if [ -n "$PREVIOUS_BEFORE" ]; then point previous "$PREVIOUS_BEFORE"; else rm -f "$PREFIX/previous"; fi
    point current "$wanted"
    CURRENT_BEFORE= # the links are right already
    if activate_again "$wanted" && is_healthy "$wanted"; then
        say "release $wanted runs again$([ "$wanted" = "$TARGET" ] || echo "; release $TARGET is kept in $PREFIX/releases for a look"). journalctl -u 'millrace*' tells why it failed"
        return
    fi
    say "release $wanted does not serve either: journalctl -u 'millrace*' -e"
    return 1
}

# activate_again VERSION: whatever was changed is changed back, so everything is started anew.
activate_again() {
    BUILT=1
    activate "$1" && { box_is_active || order start; }
}
