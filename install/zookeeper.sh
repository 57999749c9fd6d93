# shellcheck shell=bash
# ZooKeeper's jars (services/zookeeper/jars.txt, 9 MB), by Maven with the settings of its user; Debian's Maven is unpacked for that and removed where none
# is installed. PySpark has the same jars, in 456 MB: the fall-back. Sourced by install.sh. Every jar is compared with its SHA-256.

JARS_SCRIPT=$ROOT/services/zookeeper/zookeeper_jars.py
JARS_LIST=$ROOT/services/zookeeper/jars.txt

# has_jars DIR: all of them, whole.
has_jars() { sed -nE 's|^[^#].*/([^/ ]+) ([0-9a-f]{64})$|\2  \1.jar|p' "$JARS_LIST" | (cd "$1" 2>/dev/null && sha256sum --status -c 2>/dev/null); }

# unpack_packages DIR PACKAGE…: of Debian, without installing them; nothing of them is executed.
unpack_packages() {
    local directory=$1 package
    shift
    mkdir -p "$directory/deb"
    (cd "$directory/deb" && apt-get download -qq -o APT::Sandbox::User=root "$@" >&2) || return 1
    for package in "$directory"/deb/*.deb; do dpkg -x "$package" "$directory" || return 1; done
    rm -rf "$directory/deb"
}

# unpack_maven DIR: DIR/usr/share/maven/bin has mvn afterwards. It needs a Java, which is not unpacked: 10 MB.
unpack_maven() {
    local wanted
    has apt-get && has dpkg || return 1
    apt_update || true # with the lists that are there
    wanted=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances maven 2>/dev/null | grep -E '^(maven|lib.*-java)$' | sort -u)
    # shellcheck disable=SC2086  # words are meant
    [ -n "$wanted" ] && quietly unpack_packages "$1" $wanted || return 1
    ln -sfn "$1/etc/maven" "$1/usr/share/maven/conf" && ln -sfn "$1/etc/maven/m2.conf" "$1/usr/share/maven/bin/m2.conf" # in the package, they lead to /etc
}

# prepare_jars DIR: what make_jars needs in DIR; before anything but root has written there.
prepare_jars() {
    mkdir -p "$1/jars" && cp "$JARS_SCRIPT" "$JARS_LIST" "$1/" || return 1
    has mvn || unpack_maven "$1/maven" || say "there is no Maven here, and apt-get could not fetch it"
}

# make_jars DIR PYTHON [RUN…]: DIR/jars, by Maven, else out of PySpark; RUN is a command that runs what follows it as another user. PYTHON has pip, and
# setuptools, which builds PySpark; DIR/spark.lock is its part of the lock.
make_jars() {
    local directory=$1 python=$2 java
    shift 2
    java=$(system_java || true)
    "$@" env PATH="$PATH:$directory/maven/usr/share/maven/bin" ${java:+JAVA_HOME="$java"} "$python" -B -P "$directory/${JARS_SCRIPT##*/}" "$directory/jars" >&2 && return
    say "taking ZooKeeper's jars out of PySpark, which has them, too (456 MB to download) …"
    "$@" "$python" -m pip --disable-pip-version-check --no-input -q install --no-deps --require-hashes --no-build-isolation --use-pep517 --no-compile \
        --target "$directory/spark" -r "$directory/spark.lock" >&2 && "$@" mv "$directory"/spark/pyspark/jars/*.jar "$directory/jars/"
}

# place_jars FROM TARGET: copies them, each compared.
place_jars() { "$(system_python)" -B -P "$JARS_SCRIPT" --from "$1" "$2" >&2; }
