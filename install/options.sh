# shellcheck shell=bash
# What was asked of `sudo ./install.sh`, and the names of everything that it puts on the machine. Sourced by install.sh; changes nothing.

SETTINGS_FILE=/etc/millrace/millrace.toml
STATE_DIRECTORY=/var/lib/millrace
RUNTIME_DIRECTORY=/run/millrace
COMMAND_LINK=/usr/local/bin/millrace
SHARE=/usr/local/share # man pages, and what completes the command in shells
SYSTEM_USER=millrace
NETWORK_USER=millrace-net # of the processes that face the network; its processes have the group of SYSTEM_USER
PREFIX_DEFAULT=/opt/millrace
ONLY_DISK=/srv/millrace/d0 # where no disk is found that is surely meant; not inside the state directory

MODE=install
YES=
DISKS=()
FORCE=()
WITHOUT_MAJORITY=
PREFIX=
WHEELHOUSE=
LIST_SUM=
LISTEN=
ADVERTISE=
BROKER_ID=
MEMBERS=()
SECRET_FILE=
RACK=
CLUSTER_GIVEN=
WAIT_SECONDS=120
PIPELINE= # yes, no, or nothing: as it is

bare_metal_usage() {
    cat <<USAGE
sudo ./install.sh [OPTIONS]    install on this machine under systemd, or upgrade what is installed; what is there already is left as it is
    --check                    only look whether it can be installed; nothing is changed
    --yes                      ask nothing (without a terminal nothing is asked anyway)
    --disks DIR,DIR,…          log directories, one for each disk [default: the settings', else the empty or known file systems mounted for it]
    --force REASON,…           use what --disks names although: missing (it does not exist), root-filesystem, same-device (as another one, or the state), other-files
    --listen ADDRESS           address to listen on [default: 0.0.0.0, which is all]
    --advertise NAME           name or address that Kafka clients are told [default: this machine's address]
    --broker-id N              number of this box in its cluster [default: 1]
    --zookeeper-members ID=ADDRESS,…   the ZooKeeper ensemble that the boxes of a cluster run together, the same on each [default: one of this box alone]
    --zookeeper-secret FILE    the secret that the boxes of that ensemble share, one line in a file of mode 0600, the same on each [default: the one that is installed]
    --rack NAME                where this box stands (broker.rack)
    --prefix DIR               where releases go [default: $PREFIX_DEFAULT]
    --pipeline                 with Spark jobs, too (millrace load, stream, query): 1 GB on disk instead of 190 MB. Kept by later runs; --no-pipeline ends it
    --offline WHEELHOUSE       take Python packages out of this directory only
    --offline-sha256 HEX       the SHA-256 that --make-wheelhouse printed, for packages that it built from sources; requirements.lock has the others'
    --without-majority         upgrade although a member of the boxes' ZooKeeper ensemble is missing, and the restart leaves the others without a majority
    --wait SECONDS             how long a new release may take until it serves [default: $WAIT_SECONDS]
sudo ./install.sh --rollback   back to the release before this one
sudo ./install.sh --uninstall  stop and remove the program; data, state and settings stay
./install.sh --make-wheelhouse DIR    fetch the Python packages for --offline, with their hashes (with --pipeline those of Spark jobs, too)
USAGE
}

usage_error() {
    say "install.sh: $1"
    bare_metal_usage >&2
    exit 2
}

# parse_options ARGUMENT…: sets the variables above. An option's value may follow it or stand behind "=".
parse_options() {
    local option value
    while [ $# -gt 0 ]; do
        option=$1
        shift
        case $option in
            --check) MODE=check; continue ;;
            --rollback) MODE=rollback; continue ;;
            --uninstall) MODE=uninstall; continue ;;
            --yes) YES=1; continue ;;
            --without-majority) WITHOUT_MAJORITY=1; continue ;;
            --pipeline) PIPELINE=yes; continue ;;
            --no-pipeline) PIPELINE=no; continue ;;
            --*=*) value=${option#*=} option=${option%%=*} ;;
            --*) [ $# -gt 0 ] || usage_error "$option wants a value, or is no option"; value=$1; shift ;;
            *) usage_error "there is no verb or option $option" ;;
        esac
        [ -n "$value" ] || usage_error "$option is empty"
        case $option in
            --disks) IFS=, read -ra DISKS <<<"$value"; DISKS=("${DISKS[@]%/}") ;;
            --force) FORCE+=(--force "$value") ;;
            --prefix) PREFIX=${value%/} ;;
            --offline) WHEELHOUSE=$value ;;
            --offline-sha256) LIST_SUM=$value ;;
            --make-wheelhouse) MODE=wheelhouse WHEELHOUSE=$value ;;
            --listen) LISTEN=$value ;;
            --advertise) ADVERTISE=$value ;;
            --broker-id) BROKER_ID=$value CLUSTER_GIVEN=1 ;;
            --zookeeper-members) IFS=, read -ra MEMBERS <<<"$value"; CLUSTER_GIVEN=1 ;;
            --zookeeper-secret) SECRET_FILE=$value ;;
            --rack) RACK=$value CLUSTER_GIVEN=1 ;;
            --wait) WAIT_SECONDS=$value ;;
            *) usage_error "there is no option $option" ;;
        esac
    done
    [[ $WAIT_SECONDS =~ ^[1-9][0-9]{0,4}$ ]] || usage_error "--wait is '$WAIT_SECONDS'; it must be a number of seconds"
    [[ -z $BROKER_ID || $BROKER_ID =~ ^[0-9]{1,9}$ ]] || usage_error "--broker-id is '$BROKER_ID'; it must be a number"
    [[ -z $RACK || $RACK =~ ^[A-Za-z0-9._+-]+$ ]] || usage_error "--rack is '$RACK'; it must be of letters, digits and ._+-"
    [[ -z $LIST_SUM || $LIST_SUM =~ ^[0-9a-f]{64}$ ]] || usage_error "--offline-sha256 is '$LIST_SUM'; it must be 64 hexadecimal digits"
    [ -z "$LIST_SUM" ] || [ -n "$WHEELHOUSE" ] || usage_error "--offline-sha256 needs --offline WHEELHOUSE"
    local member
    for member in "${MEMBERS[@]}"; do
        [[ $member =~ ^[0-9]+=[][A-Za-z0-9.:_%-]+$ ]] || usage_error "--zookeeper-members has '$member'; a member is written ID=ADDRESS, such as 1=10.0.0.1"
    done
    [ "$LISTEN" != "*" ] || LISTEN=0.0.0.0
    [ -z "$SECRET_FILE" ] || SECRET_FILE=$(realpath -m "$SECRET_FILE")
    [ -z "$WHEELHOUSE" ] || WHEELHOUSE=$(realpath -m "$WHEELHOUSE")
}

# is_plain_path PATH: absolute, and of characters that mean nothing to shell, TOML, systemd or udev.
is_plain_path() { [[ $1 =~ ^(/[A-Za-z0-9._+-]+)+$ ]] && [[ $1 != */../* && $1 != */.. ]]; }
