# shellcheck shell=bash
# Releases: PREFIX/releases/VERSION, each whole (its own copy of the tree, its own .venv, bytecode), never changed once `.complete` is there; `current` and
# `previous` point at two of them. Sourced by install.sh. What third-party packages two releases share is one file on the disk (hard links).

BUILT= # whether this run has built the release
RELEASE_PARTS="appliance services pyspark_millrace systemd install install.sh pyproject.toml docs README.md CONTRIBUTING.md ARCHITECTURE.md DECISIONS.md INVARIANTS.md STYLE.md CHANGELOG.md SECURITY.md LICENSE"

# What imports every process's main.
EVERY_MAIN='import importlib, pkgutil, services; [importlib.import_module(f"services.{found.name}.__main__") for found in pkgutil.iter_modules(services.__path__)]'

tree_parts() { (cd "$ROOT" && ls -d $RELEASE_PARTS 2>/dev/null); } # shellcheck disable=SC2086  # words are meant

# tree_hash: of every file that goes into a release.
tree_hash() {
    # shellcheck disable=SC2046
    (cd "$ROOT" && find $(tree_parts) -type f ! -path '*/__pycache__/*' ! -name '*.pyc' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c 1-8)
}

# tree_version: other files or other packages, another version. With the pipeline its name ends with that.
tree_version() {
    local version
    version=$(files_version)
    version=${version%.pipeline}
    if wants_pipeline; then version=$version.pipeline; fi
    echo "$version"
}

# files_version: 0.1.0+g1340c1f for a clean checkout, 0.1.0+g1340c1f.HASH for one with changes, 0.1.0+HASH without git.
files_version() {
    local base commit
    if [ -f "$ROOT/VERSION" ]; then cat "$ROOT/VERSION"; return; fi # this is a release itself
    base=$(sed -nE 's/^version = "([^"]+)"/\1/p' "$ROOT/pyproject.toml" | head -n 1)
    if has git && [ "$(git_here rev-parse --show-toplevel 2>/dev/null)" = "$ROOT" ] && commit=$(git_here rev-parse --short=7 HEAD 2>/dev/null); then
        # shellcheck disable=SC2046
        if [ -z "$(git_here status --porcelain -- $(tree_parts))" ]; then echo "$base+g$commit"; else echo "$base+g$commit.$(tree_hash)"; fi
    else
        echo "$base+$(tree_hash)"
    fi
}

# git_here ARGUMENT…: in this checkout, as its owner, because its configuration may name programs. Nothing is written, not even an index.
git_here() {
    local owner words=(git -C "$ROOT" --no-optional-locks)
    owner=$(stat -c %u "$ROOT")
    if is_root && [ "$owner" != 0 ]; then
        (cd / && exec setpriv --reuid="$owner" --regid="$(stat -c %g "$ROOT")" --clear-groups -- env HOME=/ "${words[@]}" "$@")
    else
        "${words[@]}" -c "safe.directory=$ROOT" "$@"
    fi
}

# is_complete VERSION: whole, and still of the Python that it was made of (an upgrade of the system may have taken that away).
is_complete() { [ -f "$PREFIX/releases/$1/.complete" ] && [ "$(python_words "$PREFIX/releases/$1/.venv/bin/python" 2>/dev/null)" = "$(cat "$PREFIX/releases/$1/.complete")" ]; }

# build_release VERSION: nothing that runs sees it before it is switched to.
build_release() {
    local release=$PREFIX/releases/$1 started=$SECONDS python donor=
    is_complete "$1" && return
    python=$(system_python) || die "there is no Python 3.$PYTHON_MINOR_MIN below /usr"
    say "building $release …"
    rm -rf "$release" && mkdir -p "$release" || return 1
    # shellcheck disable=SC2046
    (cd "$ROOT" && tar --exclude=__pycache__ --exclude='*.pyc' -cf - $(tree_parts)) | tar -C "$release" --no-same-owner -xf - || return 1
    echo "$1" >"$release/VERSION"
    if wants_pipeline; then touch "$release/.pipeline"; fi
    { wanted_packages; python_words "$python"; wants_pipeline || cat "$JARS_LIST"; } | sha256sum | cut -d ' ' -f 1 >"$release/.packages"
    donor=$(grep -lxF "$(cat "$release/.packages")" "$PREFIX"/releases/*/.packages 2>/dev/null | grep -vF "$release/" | while read -r file; do
        [ -f "${file%.packages}.complete" ] && echo "${file%/.packages}" && break
    done) || true
    if [ -n "$donor" ]; then
        share_packages "$python" "$donor" "$release" || return 1
    else
        "$python" -m venv "$release/.venv" && install_packages "$release/.venv" && strip_packages "$release" || return 1
    fi
    finish_release "$release" || return 1
    python_words "$python" >"$release/.complete"
    BUILT=1
    did "built $release: $(release_size "$release") in $((SECONDS - started)) s${donor:+, packages shared with ${donor##*/}}"
}

# release_size RELEASE: what it takes on the disk beside the releases that it shares files with.
release_size() {
    local all alone
    all=$(du -sm "$1" | cut -f 1)
    alone=$(find "$1" -type f -links 1 -printf '%k\n' | awk '{ size += $1 } END { printf "%d", size / 1024 }')
    if [ $((all - alone)) -gt 5 ]; then echo "$all MB, $alone of them its own"; else echo "$all MB"; fi
}

site_packages() { echo "$1"/.venv/lib/python3.*/site-packages; }

# share_packages PYTHON FROM TO: hard links to another release's packages, when both need the same.
share_packages() {
    local packages
    "$1" -m venv --without-pip "$3/.venv" || return 1
    packages=$(site_packages "$3")
    rm -rf "$packages" && cp -al "$(site_packages "$2")" "$packages" && rm -f "$packages/millrace.pth" || return 1
    if ! wants_pipeline; then mkdir -p "$3/.venv/share/millrace" && cp -al "$2/.venv/share/millrace/zookeeper" "$3/.venv/share/millrace/"; fi
}

# strip_packages RELEASE: without pip and commands of packages. PySpark stays whole: its modules and jars name each other, and a user's own job may want
# any of them.
strip_packages() {
    "$1/.venv/bin/python" -m pip --disable-pip-version-check -q uninstall -y pip setuptools >&2 || return 1
    find "$1/.venv/bin" -mindepth 1 ! -name 'python*' -delete
}

# finish_release RELEASE: our own code on its path, the command, bytecode (the service may not write any), rights; and it must start.
finish_release() {
    local python=$1/.venv/bin/python
    echo "$1" >"$(site_packages "$1")/millrace.pth"
    printf '#!%s -P\nfrom appliance.command.main import main\n\nmain()\n' "$python" >"$1/.venv/bin/millrace"
    chmod 0755 "$1/.venv/bin/millrace"
    "$python" -m compileall -q -j 0 "$1/appliance" "$1/services" "$(site_packages "$1")" >"$SCRATCH/compile" 2>&1 || true # packages bring files of other Pythons
    PYTHONPATH=$1 "$python" -B -P -m services.zookeeper.zookeeper_classes >"$SCRATCH/classes" 2>&1 || true # it starts faster with them, and works without
    chmod -R a+rX,go-w "$1" && chown -hR root:root "$1" || return 1
    compile_release "$1" || true
    "$1/.venv/bin/millrace" --help >/dev/null || { say "its command does not start"; return 1; }
    # Every process's main can be imported: a package that is not there is found out before anything is switched. Others import what --pipeline installs.
    "$python" -B -P -c "$EVERY_MAIN" || { say "not every process of it can be imported"; return 1; }
}

# point LINK VERSION: in one step, seen whole or not at all.
point() { ln -sfn "releases/$2" "$PREFIX/$1.part" && mv -Tf "$PREFIX/$1.part" "$PREFIX/$1"; }

# remove_old_releases: all but current and previous.
remove_old_releases() {
    local release name
    for release in "$PREFIX"/releases/*/; do
        name=${release%/} name=${name##*/}
        if [ "$name" != "$(release_at current)" ] && [ "$name" != "$(release_at previous)" ] && [ -d "$release" ]; then
            rm -rf "$release"
            did "removed release $name; current and previous are kept"
        fi
    done
}
