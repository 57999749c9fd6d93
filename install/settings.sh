# shellcheck shell=bash
# The settings file as this installation would write it, and the effective one: the one in place, if it was edited. Sourced by install.sh.

OPTION_LINES=

# read_options TREE FILE: what the box would take from FILE; false where no Python can be asked yet.
read_options() {
    local python
    OPTION_LINES=
    python=$(system_python) || return 1
    OPTION_LINES=$(PYTHONPATH=$1 "$python" -B -P -m appliance.runtime.option_lines "$2")
}

# option_values NAME: its values in what was read last, one a line.
option_values() { awk -F '\t' -v name="$1" '$1 == name { print $2 }' <<<"$OPTION_LINES"; }

# choose_settings: DISKS, LISTEN, ADVERTISE, BROKER_ID, MEMBERS, RACK: as asked for, else as the last installation wrote them, else as they are in a file that is there, else as found.
# Says in *_FROM where they are from.
choose_settings() {
    local known
    DISKS_FROM="given" LISTEN_FROM="given" ADVERTISE_FROM="given"
    for known in "$PREFIX/current/.settings" "$SETTINGS_FILE" ''; do [ -f "$known" ] && break; done
    if [ -n "$known" ] && read_options "$ROOT" "$known"; then
        if [ ${#DISKS[@]} = 0 ]; then mapfile -t DISKS < <(option_values data); DISKS_FROM="as before"; fi
        if [ -z "$ADVERTISE" ] && [ -z "$LISTEN" ]; then ADVERTISE=$(option_values advertise); ADVERTISE_FROM="as before"; fi
        if [ -z "$LISTEN" ]; then LISTEN=$(option_values listen); LISTEN_FROM="as before"; fi
        if [ -z "$BROKER_ID" ]; then BROKER_ID=$(option_values broker_id); fi
        if [ -z "$RACK" ]; then RACK=$(option_values rack); fi
        if [ ${#MEMBERS[@]} = 0 ]; then mapfile -t MEMBERS < <(option_values zookeeper_member); fi
    fi
    if [ ${#DISKS[@]} = 0 ]; then mapfile -t DISKS < <(find_log_disks); DISKS_FROM="mounted, and empty or a log directory"; fi
    if [ ${#DISKS[@]} = 0 ]; then DISKS=("$ONLY_DISK"); DISKS_FROM="no disk was found that is surely meant; name them with --disks"; fi
    if [ -z "$LISTEN" ]; then LISTEN=0.0.0.0; LISTEN_FROM="every address; --listen narrows it"; fi
    if [ -z "$ADVERTISE" ]; then
        if [ "$LISTEN" != 0.0.0.0 ] && [ "$LISTEN" != :: ]; then ADVERTISE=$LISTEN; ADVERTISE_FROM="as --listen"
        else ADVERTISE=$(machine_address || echo 127.0.0.1); ADVERTISE_FROM="this machine's address; --advertise gives clients another"; fi
    fi
}

# write_settings: the file, on standard output. The same choices make the same bytes, or a second run would find something to do.
write_settings() {
    cat <<SETTINGS
# Settings of this box, written by install.sh. Edit it freely: once it was edited it is never overwritten; what a later release would
# write is then put beside it, as millrace.toml.new.
# After a change: millrace config check $SETTINGS_FILE && sudo millrace units apply && sudo systemctl restart millrace.target
# Every setting with its default, bounds and meaning: $PREFIX/current/docs/settings.md

# Settings by Kafka's names stand here, above [box], in quotes. Some that are often changed, with their defaults:
# "log.retention.hours" = 168 # how long records are kept; -1 is for ever
# "log.flush.policy" = "os" # "ack": what is acknowledged survives a power cut
# "num.partitions" = 1 # of a topic that is created without saying how many
$(rack_line)
$(old_table_lines)

[box]
# Log directories, one for each disk, each on a file system of its own.
data = [$(printf '"%s", ' "${DISKS[@]}" | sed 's/, $//')]

# ZooKeeper's data and the box's identity. Never on a log disk: a hung disk must not take the metadata with it.
state = "$STATE_DIRECTORY"

# Where it listens; 0.0.0.0 is every address of this machine. Until docs/security.md is followed, any client that reaches these ports may read and write.
listen = "$LISTEN"
kafka-port = 9092
syslog-port = 514 # UDP and TCP
http-port = 8080
ingest-port = 8081 # senders by HTTP

# The address that Kafka clients receive: this machine as they see it. \`millrace doctor\` checks it.
advertise = "$ADVERTISE"

# acceptors = 1 # processes that serve Kafka clients; one for four cores if it is left out

# Several boxes that are one cluster: a number for each, and the addresses of the three that run a member of the ZooKeeper ensemble (docs/cluster.md).
$(cluster_lines)

# Senders beside syslog and HTTP (TLS, RELP, Fluent, Beats …), and which topic takes what (docs/senders.md). Examples:
# [[ingest.listener]]
# name = "relays"
# protocol = "relp" # or syslog, fluent, lumberjack, gelf, http
# transport = "tcp" # or udp (syslog, gelf), tls (with certificate and private-key)
# port = 2514

# [[ingest.listener]]
# name = "http" # options of a built-in listener: syslog-tcp, syslog-udp, http
# token = "SECRET" # then: chown root:$SYSTEM_USER $SETTINGS_FILE; chmod 640 $SETTINGS_FILE

# [[ingest.route]]
# facility = ["auth", "authpriv"] # or min-severity, severity, app, host, tag, listener, label.NAME, field.PATH
# topic = "security"
SETTINGS
}

# old_table_lines: where listeners and routes of release 0.1 are, until `millrace config convert` moves them into this file.
old_table_lines() {
    if [ ! -e "${SETTINGS_FILE%/*}/ingest.table" ]; then return; fi
    printf '\n# Listeners and routes as release 0.1 had them; sudo millrace config convert %s moves them into this file.\n' "$SETTINGS_FILE"
    echo "\"ingest.table.file\" = \"${SETTINGS_FILE%/*}/ingest.table\""
}

# Not set, they stand there as examples.
rack_line() { if [ -n "$RACK" ]; then echo "\"broker.rack\" = \"$RACK\" # where this box stands"; else echo '# "broker.rack" = "r1" # where this box stands: replicas are spread over racks'; fi; }

cluster_lines() {
    if [ -n "$BROKER_ID" ]; then echo "broker-id = $BROKER_ID"; else echo "# broker-id = 1"; fi
    if [ ${#MEMBERS[@]} = 0 ]; then echo '# zookeeper-members = ["1=10.0.0.1", "2=10.0.0.2", "3=10.0.0.3"]'
    else echo "zookeeper-members = [$(printf '"%s", ' "${MEMBERS[@]}" | sed 's/, $//')]"; fi
}
