# shellcheck shell=bash
# Python packages of a release, and the wheelhouse they can come from without a network. Sourced by install.sh. A wheelhouse is a directory of wheels
# with requirements.txt, a line each: NAME==VERSION --hash=sha256:HEX  # FILE. The list travels with the wheels, so it alone would detect damage, not
# malice: a wheel is installed if requirements.lock of this release has its SHA-256, or the operator has given that of the whole list, which
# --make-wheelhouse prints. Wheels that were built from sources (PySpark) differ with each build, so the lock cannot have them. ZooKeeper's jars are in
# its folder zookeeper; this release has their sums.

PIPELINE_EXTRAS='pipeline delta iceberg query postgresql' # of pyproject.toml: all that millrace load, stream and query can do

# wants_pipeline: whether Spark jobs are to run from the release. What is installed stays as it is, unless something else is said.
wants_pipeline() { [ "$PIPELINE" = yes ] || { [ -z "$PIPELINE" ] && [ -f "${PREFIX:-/nowhere}/current/.pipeline" ]; }; }

# pins_by_hand TREE: the requirements of pyproject.toml, one a line; also where no Python is there yet.
pins_by_hand() {
    local extra
    sed -n '/^dependencies = \[/,/^\]/p' "$1/pyproject.toml" | sed -nE 's/^ *"([^"]+)".*/\1/p'
    wants_pipeline || return 0
    for extra in $PIPELINE_EXTRAS; do sed -n "/^$extra = \[/,/^\]/p" "$1/pyproject.toml" | sed -nE 's/^ *"([^"]+)".*/\1/p'; done
}

# normal NAME: as package names are compared.
normal() { tr '[:upper:]_.' '[:lower:]--' <<<"$1"; }

python_words() { "$1" -c 'import platform, sys; print(f"python {sys.version_info[0]}.{sys.version_info[1]}, {platform.machine()}")'; }

# wheelhouse_problems DIR: a line for everything that is wrong with it. Nothing is installed from one that has any.
wheelhouse_problems() {
    local list=$SCRATCH/wheelhouse.txt line name version sum file found pin names=' ' unknown='' made python
    : >"$SCRATCH/wheelhouse.hashed" # what pip reads: made of what was checked, because pip splits lines at other characters and reads each --hash
    if ! cp "$1/requirements.txt" "$list" 2>/dev/null; then
        echo "$1/requirements.txt is not there; make a wheelhouse with ./install.sh --make-wheelhouse DIR on a machine with a network"
        return
    fi
    found=$(sum_of "$list")
    if [ -n "$LIST_SUM" ] && [ "$found" != "$LIST_SUM" ]; then
        echo "$1/requirements.txt has SHA-256 $found, --offline-sha256 says $LIST_SUM; it is another list: copy the wheelhouse again, from where you trust it"
        return
    fi
    while read -r line || [ -n "$line" ]; do
        [[ $line == \#* || -z $line ]] && continue
        if [[ ! $line =~ ^([A-Za-z0-9._-]+)==([A-Za-z0-9._+!-]+)\ --hash=sha256:([0-9a-f]{64})\ \ \#\ ([A-Za-z0-9._+!-]+\.whl)$ ]]; then
            echo "$1/requirements.txt: the line of ${line%% *} is not 'NAME==VERSION --hash=sha256:HEX  # FILE.whl'"
            continue
        fi
        name=${BASH_REMATCH[1]} version=${BASH_REMATCH[2]} sum=${BASH_REMATCH[3]} file=${BASH_REMATCH[4]}
        [[ $names != *" $(normal "$name")=="* ]] || echo "$1/requirements.txt has more than one line of $name"
        names="$names$(normal "$name")==$version "
        if [ ! -f "$1/$file" ]; then echo "$1/$file is missing; copy the wheelhouse again"; continue; fi
        found=$(sum_of "$1/$file")
        [ "$found" = "$sum" ] || echo "$1/$file has SHA-256 ${found:0:12}…, requirements.txt says ${sum:0:12}…; it is damaged or another file: copy the wheelhouse again"
        grep -qF -- "--hash=sha256:$found" "$ROOT/install/requirements.lock" || unknown="$unknown, $name"
        echo "$name==$version --hash=sha256:$found" >>"$SCRATCH/wheelhouse.hashed"
    done <"$list"
    if [ -n "$unknown" ] && [ -z "$LIST_SUM" ]; then
        echo "$1: requirements.lock of this release does not have the SHA-256 of ${unknown#, } (a wheel that was built from sources has a sum of its own); give the one that --make-wheelhouse printed: --offline-sha256 HEX"
    fi
    while read -r pin; do
        [[ $names == *" $(normal "${pin%%==*}")==${pin#*==} "* ]] || echo "$1 has no $pin, which this release needs; make the wheelhouse anew with this release"
    done < <(pins_by_hand "$ROOT")
    wants_pipeline || has_jars "$1/zookeeper" || echo "$1/zookeeper does not have ZooKeeper's jars as this release needs them; make the wheelhouse anew with this release"
    made=$(sed -nE '1s/^# millrace wheelhouse: //p' "$list")
    if python=$(system_python) && [ "$made" != "$(python_words "$python")" ]; then
        echo "$1 was made for ${made:-an unknown Python}, this machine has $(python_words "$python"); make it on a machine like this one"
    fi
}

# locked select|only [EXTRA…]: lines of requirements.lock, each with the SHA-256 of what may be installed.
locked() { "$(system_python)" -B "$ROOT/install/lock.py" "$@"; }

# wanted_packages: what a release needs here: its locked packages, and a Java out of a package where the machine has none.
wanted_packages() {
    # shellcheck disable=SC2046  # words are meant
    locked select $(wants_pipeline && echo "$PIPELINE_EXTRAS") $(system_java >/dev/null || echo java)
}

# choose_builder: a user id that no account and no process has, for what packages execute while they are installed.
choose_builder() {
    local id
    for id in $(shuf -i 61184-65519 -n 20); do
        if ! getent passwd "$id" >/dev/null && [ -z "$(find /proc -mindepth 1 -maxdepth 1 -uid "$id" -print -quit 2>/dev/null)" ]; then
            BUILDER=$id
            return
        fi
    done
    say "no user id between 61184 and 65519 is free"
    return 1
}

# as_builder DIR COMMAND…: run it as BUILDER, with DIR as its home and for its temporary files.
as_builder() {
    local directory=$1
    shift
    (cd / && exec setpriv --reuid="$BUILDER" --regid="$BUILDER" --clear-groups --no-new-privs -- env HOME="$directory" TMPDIR="$directory" "$@")
}

# take_back DIR: end what still runs as BUILDER, and give root what it wrote. A hard link to a file of another user would be seen here.
take_back() {
    as_builder / sh -c 'kill -KILL -1' 2>/dev/null || true
    [ -z "$(find "$1" ! -uid "$BUILDER" -print -quit)" ] || { say "$1 has files of another user: $(find "$1" ! -uid "$BUILDER" -print -quit)"; return 1; }
    chown -hR root:root "$1" && chmod -R ug-s "$1"
}

# from_wheelhouse FILE: of the wheels, those of the packages in FILE, which is a part of the lock.
from_wheelhouse() {
    awk -F '==' '{ name = tolower($1); gsub(/[_.]/, "-", name) } NR == FNR { if (/^[A-Za-z0-9]/) wanted[name]; next } name in wanted' "$1" "$SCRATCH/wheelhouse.hashed"
}

# make_builder_home DIR: what BUILDER writes to, with the registries that root has chosen.
make_builder_home() {
    local file
    rm -rf "$1" && mkdir -p "$1" && choose_builder || return 1
    [ -z "$WHEELHOUSE" ] || return 0
    for file in ~/.config/pip/pip.conf ~/.pip/pip.conf; do
        [ ! -f "$file" ] || { mkdir -p "$1/.config/pip" && cat "$file" >>"$1/.config/pip/pip.conf"; }
    done
    [ ! -f ~/.m2/settings.xml ] || { mkdir -p "$1/.m2" && cp ~/.m2/settings.xml "$1/.m2/"; }
}

# install_packages VENV: into a virtual environment that has pip, with ZooKeeper's jars. Not as root: an sdist (PySpark) executes its setup.py.
install_packages() {
    local directory=$PREFIX/releases/.tmp # not /tmp, which may be small: a gigabyte is unpacked there
    local pip=("$1/bin/python" -m pip --disable-pip-version-check --no-input -q install --no-deps --require-hashes) status=0 jars=$directory/jars
    [ -z "$WHEELHOUSE" ] || jars=$WHEELHOUSE/zookeeper
    make_builder_home "$directory" && wanted_packages >"$directory/wanted" || return 1
    if [ -n "$WHEELHOUSE" ]; then
        from_wheelhouse "$directory/wanted" >"$directory/hashed"
        ln -s "$WHEELHOUSE" "$directory/wheels"
        chmod 0755 "$directory"
        # shellcheck disable=SC2016  # BUILDER's shell expands it
        as_builder "$directory" sh -c 'for wheel in "$0"/*.whl; do [ -r "$wheel" ] || exit 1; done' "$directory/wheels" || { rm "$directory/wheels" && mkdir "$directory/wheels" && cp "$WHEELHOUSE"/*.whl "$directory/wheels/"; } || return 1
    else
        locked only build >"$directory/build" && locked only zookeeper >"$directory/spark.lock" || return 1
        wants_pipeline || prepare_jars "$directory" || return 1
    fi
    chown -hR "$BUILDER:$BUILDER" "$directory" "$1" || return 1
    if [ -n "$WHEELHOUSE" ]; then
        as_builder "$directory" "${pip[@]}" --no-index --find-links "$directory/wheels" -r "$directory/hashed" >&2 || status=1
    else
        as_builder "$directory" "${pip[@]}" -r "$directory/build" >&2 &&
            as_builder "$directory" "${pip[@]}" --no-build-isolation --use-pep517 -r "$directory/wanted" >&2 || status=1
        if [ "$status" = 0 ] && ! wants_pipeline; then make_jars "$directory" "$1/bin/python" as_builder "$directory" || status=1; fi
    fi
    take_back "$1" || status=1
    if [ "$status" = 0 ] && ! wants_pipeline; then place_jars "$jars" "$1/share/millrace/zookeeper" || status=1; fi
    rm -rf "$directory"
    return "$status"
}

# compile_release RELEASE: its produce path, where a C compiler, Python's headers and mypy are. It runs without, too. mypy stays in a virtual environment of
# its own, which BUILDER uses.
compile_release() {
    local directory=$PREFIX/releases/.tmp status=0 pip
    case ${MILLRACE_PURE:-0} in 0) ;; *) return ;; esac
    "$1/.venv/bin/python" -B -P "$1/install/compile_modules.py" --check "$1" "$1/.venv" >&2 || status=$?
    [ "$status" = 2 ] || return
    if [ -n "$WHEELHOUSE" ] && ! grep -q '^mypy==' "$SCRATCH/wheelhouse.hashed"; then
        say "not compiled: the wheelhouse has no mypy; all processes run as pure Python"
        return
    fi
    make_builder_home "$directory" && locked only compiled >"$directory/wanted" && mkdir -p "$directory/out/bin" || return
    "$(system_python)" -m venv "$directory/venv" || return
    pip=("$directory/venv/bin/python" -m pip --disable-pip-version-check --no-input -q install --no-deps --require-hashes --only-binary :all:)
    printf '#!/bin/sh\nexec "%s" "$@"\n' "$1/.venv/bin/python" >"$directory/out/bin/python"
    chmod 0755 "$directory/out/bin/python"
    if [ -n "$WHEELHOUSE" ]; then
        mkdir "$directory/wheels" && cp "$WHEELHOUSE"/*.whl "$directory/wheels/" && from_wheelhouse "$directory/wanted" >"$directory/hashed" || return
        pip+=(--no-index --find-links "$directory/wheels" -r "$directory/hashed")
    else
        pip+=(-r "$directory/wanted")
    fi
    chown -hR "$BUILDER:$BUILDER" "$directory"
    if as_builder "$directory" "${pip[@]}" >&2; then
        as_builder "$directory" "$directory/venv/bin/python" -B -P "$1/install/compile_modules.py" "$1" "$directory/out" >&2 || true
    else
        say "not compiled: mypy could not be installed; all processes run as pure Python"
    fi
    if take_back "$directory" && [ -d "$directory/out/compiled" ]; then
        chmod -R a+rX,go-w "$directory/out/compiled" && mv -T "$directory/out/compiled" "$1/.venv/compiled"
    fi
    rm -rf "$directory"
}

make_wheelhouse() {
    local python directory=$WHEELHOUSE wheel name version rest started=$SECONDS
    python=$(system_python) || die "Python 3.$PYTHON_MINOR_MIN or newer is needed: sudo apt-get install python3 python3-venv"
    python_makes_venvs "$python" || die "Python cannot make virtual environments here: sudo apt-get install python3-venv"
    mkdir -p "$directory" || die "$directory cannot be made"
    [ -z "$(ls -A "$directory")" ] || [ -f "$directory/requirements.txt" ] || die "$directory is not empty and no wheelhouse; name another directory"
    say "fetching the packages of pyproject.toml for $(python_words "$python") (about $(wants_pipeline && echo 700 || echo 120) MB once; pip keeps them) …"
    "$python" -m venv "$SCRATCH/venv"
    # shellcheck disable=SC2046  # words are meant
    locked select java compiled $(wants_pipeline && echo "$PIPELINE_EXTRAS") >"$SCRATCH/wanted" && locked only build >"$SCRATCH/build" && locked only zookeeper >"$SCRATCH/spark.lock" || die "the list of packages could not be read; its message is above"
    rm -f "$directory"/*.whl "$directory/requirements.txt"
    mkdir "$SCRATCH/wheels"
    fetch_wheels || die "pip could not fetch them; its message is above"
    mv "$SCRATCH"/wheels/*.whl "$directory/" && place_jars "$SCRATCH/jars" "$directory/zookeeper" || die "the wheelhouse could not be written"
    {
        echo "# millrace wheelhouse: $(python_words "$python")"
        for wheel in "$directory"/*.whl; do
            rest=${wheel##*/} name=${rest%%-*} rest=${rest#*-} version=${rest%%-*}
            echo "$name==$version --hash=sha256:$(sum_of "$wheel")  # ${wheel##*/}"
        done
    } >"$SCRATCH/list" && mv "$SCRATCH/list" "$directory/requirements.txt"
    say "$directory: $(grep -c sha256 "$directory/requirements.txt") wheels, $(du -sm "$directory" | cut -f 1) MB, $((SECONDS - started)) s"
    say "there: sudo ./install.sh --offline DIR --offline-sha256 $(sum_of "$directory/requirements.txt")"
    say "(the sum is that of requirements.txt; take it along by another way than the wheels)"
}

# fetch_wheels: into SCRATCH/wheels and SCRATCH/jars, with the virtual environment in SCRATCH; of root as another user, because an sdist executes its setup.py.
fetch_wheels() {
    local pip=("$SCRATCH/venv/bin/python" -m pip --disable-pip-version-check --no-input -q) as=() status=0
    prepare_jars "$SCRATCH" || return 1
    if is_root; then
        choose_builder && chown -hR "$BUILDER:$BUILDER" "$SCRATCH" || return 1
        as=(as_builder "$SCRATCH")
    fi
    "${as[@]}" "${pip[@]}" install --no-deps --require-hashes -r "$SCRATCH/build" >&2 &&
        "${as[@]}" "${pip[@]}" wheel --no-deps --require-hashes --no-build-isolation --use-pep517 -w "$SCRATCH/wheels" -r "$SCRATCH/wanted" >&2 &&
        make_jars "$SCRATCH" "$SCRATCH/venv/bin/python" "${as[@]}" || status=1
    ! is_root || take_back "$SCRATCH" || status=1
    return "$status"
}

# make_packages DIRECTORY: the wheels millrace and pyspark-millrace with their bills of materials, and the .deb, by packages of the lock in a virtual
# environment for this. Files have the time of the commit, or SOURCE_DATE_EPOCH.
make_packages() {
    local python scratch
    [ $# = 1 ] && [[ $1 == [!-]* ]] || die "packages wants a directory: ./install.sh packages DIR"
    python=$(find_python) && python_makes_venvs "$python" || die "Python 3.$PYTHON_MINOR_MIN or newer is needed: sudo apt-get install python3 python3-venv"
    scratch=$(mktemp -d)
    # shellcheck disable=SC2064  # now: it is local
    trap "rm -rf '$scratch'" EXIT
    umask 022
    mkdir -p "$1" || die "$1 cannot be made"
    set_source_date
    "$python" -m venv "$scratch/venv" && "$python" -B "$ROOT/install/lock.py" only packages >"$scratch/wanted" &&
        quietly "$scratch/venv/bin/python" -m pip install --disable-pip-version-check --no-input -q --no-deps --require-hashes --only-binary :all: -r "$scratch/wanted" ||
        die "the tools that build packages could not be installed; the message is above"
    "$scratch/venv/bin/python" -B "$ROOT/install/wheels.py" "$1" || die "the packages could not be built; the message is above"
    make_deb "$1" "$scratch" || die "the .deb could not be built; the message is above"
    (cd "$1" && find . -maxdepth 1 \( -name '*.whl' -o -name '*.cdx.json' -o -name '*.deb' \) -printf '%P\0' | sort -z | xargs -0 sha256sum --)
}
