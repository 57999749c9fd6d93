# shellcheck shell=bash
# Files outside of PREFIX: put in place one by one, with the SHA-256 of what was written kept in PREFIX/installed. A file whose sum is another one was
# edited by an administrator and stays as it is. Sourced by install.sh. Weak spot: an edited unit stays for ever, also when a later release
# needs another; a drop-in (systemctl edit) is the better way, and that is said.

declare -A RECORDED=() # path → sums of what installations wrote there; more than one only after one that was killed
declare -A PLACED=()   # path → sum of what this one wants there
CHANGED_FILES=()

sum_of() { sha256sum <"$1" | cut -d ' ' -f 1; }

read_record() {
    local sum path
    RECORDED=() PLACED=() CHANGED_FILES=()
    while read -r sum path; do RECORDED[$path]="${RECORDED[$path]:-} $sum"; done < <(cat "$PREFIX/installed" 2>/dev/null)
}

# is_recorded PATH SUM: an installation wrote that.
is_recorded() { [[ "${RECORDED[$1]:-} " == *" $2 "* ]]; }

# note PATH SUM: written down before PATH is, so that a kill in between leaves nothing that looks like an edit.
note() {
    is_recorded "$1" "$2" && return
    mkdir -p "$PREFIX" && printf '%s  %s\n' "$2" "$1" >>"$PREFIX/installed"
}

# write_record: what was placed and nothing else. Replaced whole.
write_record() {
    local path
    mkdir -p "$PREFIX"
    for path in "${!PLACED[@]}"; do printf '%s  %s\n' "${PLACED[$path]}" "$path"; done | sort -k 2 >"$PREFIX/installed.part"
    if cmp -s "$PREFIX/installed.part" "$PREFIX/installed"; then rm "$PREFIX/installed.part"; else mv "$PREFIX/installed.part" "$PREFIX/installed"; fi
}

# is_edited PATH: it was changed since it was written, or existed before the first installation.
is_edited() { [ -e "$1" ] && ! is_recorded "$1" "$(sum_of "$1")"; }

# place SOURCE PATH [ADVICE]: copy SOURCE to PATH; if PATH was edited, put the new version beside it.
place() {
    local source=$1 path=$2 wanted found=
    wanted=$(sum_of "$source")
    [ ! -e "$path" ] || found=$(sum_of "$path")
    if [ "$found" = "$wanted" ]; then
        :
    elif [ -z "$found" ] || is_recorded "$path" "$found"; then
        note "$path" "$wanted" && replace_file "$source" "$path" || return 1
        CHANGED_FILES+=("$path")
        did "wrote $path"
    elif ! is_recorded "$path" "$wanted"; then
        replace_file "$source" "$path.new" || return 1
        did "wrote $path.new: $path was edited and is kept"
        remark "$path was edited and is kept; compare it with $path.new${3:+ ($3)}"
    else
        remark "$path is edited and is kept"
    fi
    PLACED[$path]=$wanted
}

# replace_file SOURCE PATH: whole, or not at all. Its mode and group stay: settings may hold secrets.
replace_file() {
    local mode=0644 group=
    if [ -e "$2" ]; then mode=$(stat -c %a "$2") group=$(stat -c %g "$2"); fi
    mkdir -p "${2%/*}" && install -m "$mode" ${group:+-g "$group"} "$1" "$2.part" && mv -f "$2.part" "$2"
}

# remove_gone_files: what an earlier release placed and this one does not.
remove_gone_files() {
    local path
    for path in "${!RECORDED[@]}"; do
        if [ -z "${PLACED[$path]:-}" ]; then remove_placed "$path"; fi
    done
}

remove_placed() {
    if [ ! -e "$1" ]; then return; fi
    if is_edited "$1"; then
        remark "$1 was edited and is kept; nothing needs it any more"
        return
    fi
    rm -f "$1"
    CHANGED_FILES+=("$1")
    did "removed $1"
}
