# shellcheck shell=bash
# The Debian package millrace_VERSION_ARCHITECTURE.deb: our code, the packages of the lock, ZooKeeper's jars and the units, for the Python of the Debian that
# it is built on. Sourced by install.sh. Two builds of one commit on one Debian are equal byte by byte. Weak: it has no compiled modules (a fifth more CPU for
# small produces); an upgrade does not ask whether the ensemble of several boxes keeps its majority, and does not return by itself to the version before.

DEBIAN_TREE=/usr/lib/millrace
DEBIAN_DOCUMENTS=/usr/share/doc/millrace
# Wheels and jars are as their projects have built them, byte by byte, with their licenses beside them; mirrors are wanted by the box.
LINTIAN_OVERRIDES="binary-has-unneeded-section extra-license-file hardening-no-bindnow hardening-no-fortify-functions jar-not-in-usr-share library-not-linked-against-libc
    shared-library-lacks-prerequisites unstripped-binary-or-object unusual-interpreter systemd-service-file-refers-to-unusual-wantedby-target"
PACKAGED=$DEBIAN_TREE/.venv # there where the package is installed
DEBIAN_DISK=/srv/millrace/d0 # in the settings that it brings

# make_deb DIRECTORY SCRATCH: SCRATCH/venv is a virtual environment with pip.
make_deb() {
    local stage=$2/deb tree=$2/deb$DEBIAN_TREE version architecture
    if ! has dpkg-deb || [ ! -x /usr/bin/python3 ] || ! python_is_new_enough /usr/bin/python3; then
        say "no .deb: it is built on Debian 12 or later, with its dpkg-deb and python3"
        return
    fi
    version=$(deb_version) architecture=$(dpkg --print-architecture)
    say "building millrace_${version}_$architecture.deb …"
    mkdir -p "$tree" "$stage/DEBIAN" && cp "$ROOT"/install/debian/* "$stage/DEBIAN/" || return 1
    stage_code "$tree" "$2" && stage_manual "$stage" && stage_units "$stage" && stage_documents "$stage" "$version" "$1" || return 1
    ln -sfn ../../../../bin/python3 "$tree/.venv/bin/python3" || return 1 # which is there only once it is installed
    deb_control "$stage" "$version" "$architecture" >"$stage/DEBIAN/control" && echo "$SETTINGS_FILE" >"$stage/DEBIAN/conffiles" || return 1
    (cd "$stage" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | LC_ALL=C sort -z | xargs -0 md5sum) >"$stage/DEBIAN/md5sums" || return 1
    # Modes that no umask changes, and one time for all. One thread: several cut the data in other places.
    chmod -R u=rwX,go=rX "$stage" && find "$stage" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} + || return 1
    dpkg-deb --root-owner-group -Zxz -z2 --threads-max=1 --build "$stage" "$1/millrace_${version}_$architecture.deb" >/dev/null
}

# set_source_date: the time of the commit, or what is given; without git the oldest that a ZIP file can have.
set_source_date() { export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git_here log -1 --format=%ct 2>/dev/null || echo 315532800)}; }

# deb_version: 0.2.0~dev0+20261128172201.g1340c1f: later commits are later versions.
deb_version() {
    local version
    version=$(files_version)
    echo "$(sed 's/\.dev/~dev/' <<<"${version%%+*}")+$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S).${version#*+}"
}

# stage_code TREE SCRATCH: our code with all that it needs, and the command; it must start.
stage_code() {
    local tree=$1 venv=$1/.venv python=$1/.venv/bin/python site
    (cd "$ROOT" && tar --exclude=__pycache__ --exclude='*.pyc' -cf - appliance services pyspark_millrace) | tar -C "$tree" --no-same-owner -xf - || return 1
    site=$venv/lib/$(/usr/bin/python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])')/site-packages
    mkdir -p "$venv/bin" "$site" && ln -s /usr/bin/python3 "$venv/bin/python3" && ln -s python3 "$python" || return 1
    printf 'home = /usr/bin\ninclude-system-site-packages = false\nversion = %s\n' "$(/usr/bin/python3 -c 'import platform; print(platform.python_version())')" >"$venv/pyvenv.cfg"
    locked select >"$2/run" || return 1
    quietly "$2/venv/bin/python" -m pip --python /usr/bin/python3 --disable-pip-version-check --no-input -q install --no-compile --no-deps --require-hashes \
        --only-binary :all: --target "$site" -r "$2/run" || return 1
    rm -rf "$site/bin" && sed -i -E '/^(\.\.\/)*bin\//d' "$site"/*.dist-info/RECORD || return 1 # commands, with paths of this machine
    find "$site" -type f -exec chmod 0644 {} + # no file of it is executed
    echo "$DEBIAN_TREE" >"$site/millrace.pth"
    printf '#!%s -P\nfrom appliance.command.main import main\n\nmain()\n' "$DEBIAN_TREE/.venv/bin/python" >"$venv/bin/millrace"
    chmod 0755 "$venv/bin/millrace" && stage_jars "$venv/share/millrace/zookeeper" "$2" || return 1
    PYTHONPATH=$tree "$python" -B -P -c "$EVERY_MAIN" || { say "not every process of it can be imported"; return 1; }
}

# stage_jars TARGET SCRATCH: those of this checkout, or by Maven.
stage_jars() {
    local java
    has_jars "$VENV/share/millrace/zookeeper" && place_jars "$VENV/share/millrace/zookeeper" "$1" && return
    java=$(java_home) || { say "ZooKeeper's jars are fetched by Maven, which needs Java $JAVA_MIN or newer: sudo apt-get install openjdk-17-jre-headless"; return 1; }
    prepare_jars "$2/jars" && PATH=$PATH:$2/jars/maven/usr/share/maven/bin JAVA_HOME=$java "$2/venv/bin/python" -B -P "$JARS_SCRIPT" "$1" >&2
}

# stage_units STAGE: units and their like below /usr/lib, where the administrator's in /etc go before them; and the settings. No unit of what is not in it:
# loading needs Spark.
stage_units() {
    local source target
    for source in "$ROOT"/systemd/*; do
        target=$(target_of "${source##*/}")
        case $target in '' | *-load.*) continue ;; esac
        target=$1/usr/lib/${target#/etc/}
        mkdir -p "${target%/*}" && for_debian fill_in "$source" >"$target" || return 1
    done
    mkdir -p "$1${SETTINGS_FILE%/*}" && for_debian write_settings >"$1$SETTINGS_FILE"
}

# for_debian COMMAND…: what it writes of an installation by install.sh, for the package.
for_debian() (
    PREFIX=$DEBIAN_TREE DISKS=("$DEBIAN_DISK") LISTEN=127.0.0.1 ADVERTISE=127.0.0.1 BROKER_ID='' RACK='' MEMBERS=()
    system_java() { :; } # Debian's alternatives say which: /usr/bin/java
    old_table_lines() { :; }
    "$@" | sed -E -e '/^Environment=JAVA_HOME=$/d' -e "s|(file:)?$PREFIX/current/(docs\|services\|systemd)/|\1$DEBIAN_DOCUMENTS/\2/|" -e "s|$PREFIX/current|$PREFIX|g" \
        -e 's|written by install.sh. Edit it.*|from the package millrace. An upgrade asks before it replaces what was edited.|' -e '/^# write is then put beside it/d' \
        -e "s|^# Log directories, .*|&\n# Make them first: install -d -o $SYSTEM_USER -g $SYSTEM_USER -m 0750 $DEBIAN_DISK|" -e 's|systemctl restart millrace.target|systemctl enable --now millrace.target (later: restart millrace.target)|'
)

# stage_manual STAGE: man pages and completion, from the parser of the command.
stage_manual() {
    local share=$1/usr/share
    PYTHONPATH=$1$DEBIAN_TREE "$1$DEBIAN_TREE/.venv/bin/python" -B -P -m appliance.command.main manual "$share" >/dev/null || return 1
    mv "$share/zsh/site-functions" "$share/zsh/vendor-completions" && gzip -9n "$share"/man/man1/*
}

# stage_documents STAGE VERSION DIRECTORY: what describes it, and the bill of materials that is in DIRECTORY.
stage_documents() {
    local documents=$1$DEBIAN_DOCUMENTS
    mkdir -p "$documents/services" "$documents/systemd" "$1/usr/bin" "$1/usr/share/lintian/overrides" || return 1
    # shellcheck disable=SC2086  # words are meant
    printf 'millrace: %s\n' $LINTIAN_OVERRIDES >"$1/usr/share/lintian/overrides/millrace"
    ln -s "../lib/millrace/.venv/bin/millrace" "$1/usr/bin/millrace"
    (cd "$ROOT" && cp -r docs README.md SECURITY.md "$documents/" && cp services/README.md "$documents/services/" &&
        cp systemd/README.md systemd/prometheus-alerts.yml systemd/grafana-dashboard.json "$documents/systemd/" && gzip -9nc CHANGELOG.md >"$documents/NEWS.gz") || return 1
    cp "$3/millrace.cdx.json" "$documents/" || return 1
    printf 'millrace (%s) unstable; urgency=medium\n\n  * Built from these sources; what has changed: NEWS.gz.\n\n -- %s  %s\n' "$2" "$(maintainer)" "$(date -u -R -d "@$SOURCE_DATE_EPOCH")" |
        gzip -9n >"$documents/changelog.gz"
    cat >"$documents/copyright" <<COPYRIGHT
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: Millrace
Comment: Python packages below $DEBIAN_TREE/.venv have their licenses in their .dist-info; ZooKeeper's jars, in META-INF.

Files: *
Copyright: 2026 the authors of Millrace
License: Apache-2.0
 On Debian systems, the text is in /usr/share/common-licenses/Apache-2.0.
COPYRIGHT
}

maintainer() { echo "${DEBFULLNAME:-Millrace} <${DEBEMAIL:-root@localhost}>"; }

# deb_control STAGE VERSION ARCHITECTURE: Python's modules are of one minor version. Without systemd, two small packages make users and directories.
deb_control() {
    local minor
    minor=$(/usr/bin/python3 -c 'import sys; print(sys.version_info[1])')
    cat <<CONTROL
Package: millrace
Version: $2
Architecture: $3
Maintainer: $(maintainer)
Installed-Size: $(find "$1" -path "$1/DEBIAN" -prune -o -type f -printf '%s\n' | awk '{ size += $1 } END { printf "%d", size / 1024 }')
Depends: python3 (>= 3.$minor~), python3 (<< 3.$((minor + 1))~), default-jre-headless | java17-runtime-headless | java11-runtime-headless, libc6 (>= 2.34), libgcc-s1, libstdc++6, systemd | systemd-standalone-sysusers, systemd | systemd-standalone-tmpfiles
Section: net
Priority: optional
Description: log appliance that speaks Kafka's protocol
 Takes in syslog, Kafka producers and senders by HTTP, stores records on
 several disks, and serves Kafka's clients, searches and Spark. Its own
 ZooKeeper is in it. The settings are in $SETTINGS_FILE; nothing
 is started before millrace.target is enabled.
CONTROL
}

# make_image DIRECTORY: the image of the package of this version, which is in DIRECTORY.
make_image() {
    local package
    [ $# = 1 ] && [[ $1 == [!-]* ]] || die "image wants the directory of the .deb: sudo ./install.sh image DIR"
    set_source_date
    package=$1/millrace_$(deb_version)_$(dpkg --print-architecture).deb
    [ -f "$package" ] || die "$package is not there; build it first: ./install.sh packages $1"
    say "building ${package%.deb}.oci.tar …"
    quietly "$(find_python)" -B "$ROOT/install/image.py" "$package" "${package%.deb}.oci.tar" || die "the image could not be built; the message is above"
    (cd "$1" && sha256sum -- "$(basename "${package%.deb}.oci.tar")")
}
