# shellcheck shell=bash
# `sudo ./install.sh`: look, ask once, install or upgrade, say what was done and how to undo it. Sourced by install.sh with its parts beside it.
#
# The steps, with what a crash in each leaves → what repairs it:
#
#   preflight                      nothing: it changes nothing
#   Debian packages                what apt-get leaves → apt-get
#   build the release              `releases/VERSION` without `.complete` → the next run builds it again
#   verify the settings with it    nothing
#   settings, units and similar    each file is replaced as a whole: the old release running, some files of the new
#                                  one, used from its next start on → the next run of either release
#   `current`, one link            the new release, not started → the next run starts what has not served
#   restart, wait until all serve  the new release, running or not → the next run
#   it does not serve              everything back, the old release started: either release → the next run, `--rollback`
#   remove old releases            some of them → the next run

# shellcheck source=install/options.sh
. "$ROOT/install/options.sh"
# shellcheck source=install/findings.sh
. "$ROOT/install/findings.sh"
# shellcheck source=install/machine.sh
. "$ROOT/install/machine.sh"
# shellcheck source=install/settings.sh
. "$ROOT/install/settings.sh"
# shellcheck source=install/files.sh
. "$ROOT/install/files.sh"
# shellcheck source=install/system.sh
. "$ROOT/install/system.sh"
# shellcheck source=install/packages.sh
. "$ROOT/install/packages.sh"
# shellcheck source=install/zookeeper.sh
. "$ROOT/install/zookeeper.sh"
# shellcheck source=install/releases.sh
. "$ROOT/install/releases.sh"
# shellcheck source=install/debian.sh
. "$ROOT/install/debian.sh"
# shellcheck source=install/preflight.sh
. "$ROOT/install/preflight.sh"
# shellcheck source=install/disks.sh
. "$ROOT/install/disks.sh"
# shellcheck source=install/switch.sh
. "$ROOT/install/switch.sh"
# shellcheck source=install/uninstall.sh
. "$ROOT/install/uninstall.sh"

bare_metal() {
    umask 022
    parse_options "$@"
    SCRATCH=$(mktemp -d)
    trap 'rm -rf "$SCRATCH"' EXIT
    [ "$MODE" != wheelhouse ] || { make_wheelhouse; return; }
    PREFIX=${PREFIX:-$(installed_prefix || echo "$PREFIX_DEFAULT")}
    ! wants_pipeline || JAVA_MIN=17 # Spark's
    [ "$MODE" = check ] || is_root || die "this changes the system: sudo ./install.sh (or ./install.sh run, which does not)"
    [ "$MODE" = check ] || one_at_a_time
    case $MODE in
        check | install) install_here ;;
        rollback) roll_back ;;
        uninstall) uninstall ;;
    esac
}

one_at_a_time() {
    exec 8>"/run/millrace-install.lock"
    flock -n 8 || die "another install.sh is at work on this machine"
}

# consent QUESTION: asked of a person at a terminal only.
consent() {
    local answer
    if [ -n "$YES" ] || [ ! -t 0 ]; then return; fi
    read -r -p "$1 [Y/n] " answer
    case $answer in '' | [yYjJ]*) ;; *) die "nothing was changed" ;; esac
}

install_here() {
    local version
    choose_settings
    write_settings >"$SCRATCH/millrace.toml"
    choose_effective_settings
    choose_ordered_disks
    preflight
    print_findings
    if [ "$PROBLEM_COUNT" -gt 0 ]; then
        say "install.sh: $PROBLEM_COUNT problem$([ "$PROBLEM_COUNT" = 1 ] || echo s), nothing was changed"
        exit 2
    fi
    version=$(tree_version)
    say "$(plan_words "$version")"
    [ "$MODE" = install ] || return 0
    consent "go on?"
    install_packages_of_system
    [ -z "$CHOSEN_UNCHECKED" ] || check_chosen_now
    build_release "$version" || die "release $version could not be built; what is installed was not touched"
    check_with_release "$version"
    keep_settings_with "$version"
    switch_to "$version" || exit 1
    [ -n "$WAITS_FOR" ] || remove_old_releases
    if grep -q '^"\?ingest\.table\.file' "$SETTINGS_FILE"; then remark "listeners and routes are in a table of release 0.1; sudo millrace config convert $SETTINGS_FILE moves them into the settings"; fi
    report "$version"
}

# check_chosen_now: there was no Python that could check --disks before; no directory was made yet.
check_chosen_now() {
    FINDINGS=()
    check_chosen "${DISKS[@]}"
    [ "$PROBLEM_COUNT" -gt 0 ] || return 0
    print_findings
    die "nothing but packages was installed"
}

# choose_effective_settings: which file will count after this run. An edited one does, and the disks and addresses are those that it says.
choose_effective_settings() {
    EFFECTIVE_SETTINGS=$SCRATCH/millrace.toml
    read_record
    is_edited "$SETTINGS_FILE" || return 0
    cmp -s "$SETTINGS_FILE" "$SCRATCH/millrace.toml" && return
    EFFECTIVE_SETTINGS=$SETTINGS_FILE
    read_options "$ROOT" "$SETTINGS_FILE" || return 0
    [ -z "$(option_values problem)" ] || return 0
    if [ -n "$CLUSTER_GIVEN" ] || [ "$DISKS_FROM$LISTEN_FROM$ADVERTISE_FROM" != "${DISKS_FROM#given}${LISTEN_FROM#given}${ADVERTISE_FROM#given}" ]; then
        remark "$SETTINGS_FILE was edited and counts; what was given as an option of it (--disks, --listen and so on) stands in $SETTINGS_FILE.new only"
    fi
    mapfile -t DISKS < <(option_values data)
    LISTEN=$(option_values listen) ADVERTISE=$(option_values advertise)
    BROKER_ID=$(option_values broker_id) RACK=$(option_values rack)
    mapfile -t MEMBERS < <(option_values zookeeper_member)
    DISKS_FROM="as $SETTINGS_FILE says" LISTEN_FROM="as $SETTINGS_FILE says" ADVERTISE_FROM="as $SETTINGS_FILE says"
}

# choose_ordered_disks: those that the box has in fact, where `millrace disk` has changed them since the settings were written.
choose_ordered_disks() {
    local ordered
    read_options "$ROOT" "$EFFECTIVE_SETTINGS" || return 0
    mapfile -t ordered < <(option_values disk)
    if [ "${ordered[*]}" = "${DISKS[*]}" ] || [ "${#ordered[@]}" = 0 ]; then return 0; fi
    [ "$(option_values data | paste -sd ' ')" = "${DISKS[*]}" ] || return 0 # the given settings have mistakes, which are reported
    DISKS=("${ordered[@]}") DISKS_FROM="as millrace disk ordered"
}

plan_words() {
    local current
    current=$(release_at current || true)
    if [ -z "$current" ]; then echo "release $1 can be installed in $PREFIX"
    elif [ "$current" = "$1" ]; then echo "release $1 is installed in $PREFIX; what is missing or different is put right"
    else echo "release $current in $PREFIX can be upgraded to $1; it is kept, and returns by itself if the new one does not serve"; fi
}

install_packages_of_system() {
    local missing
    missing=$(missing_packages | paste -sd ' ')
    [ -n "$missing" ] || return 0
    # shellcheck disable=SC2086  # words are meant
    apt_install $missing || apt_install ${missing/openjdk-17-jre-headless/default-jre-headless} || die "apt-get could not install $missing; its message is above"
    did "installed $missing"
}

# check_with_release VERSION: the settings, by the release that will read them, and whether the box they describe fits into shared memory.
check_with_release() {
    local release=$PREFIX/releases/$1
    "$release/.venv/bin/millrace" config check "$EFFECTIVE_SETTINGS" >"$SCRATCH/checked" 2>&1 || { cat "$SCRATCH/checked" >&2; die "the settings are not what release $1 can run with; nothing was switched"; }
    box_is_active && return
    "$release/.venv/bin/python" -P -c '
import os, sys
from appliance.runtime.preflight import machine_problems
from appliance.runtime.run_options import RunOptions, resolve_options
problems = machine_problems(resolve_options(RunOptions(config=sys.argv[1]), os.cpu_count() or 1)[0])
print(*problems, sep="\n", end="\n" if problems else "")
sys.exit(bool(problems))
' "$EFFECTIVE_SETTINGS" >&2 || die "the box does not fit this machine; nothing was switched"
}

# keep_settings_with VERSION: what this installation would write as settings is kept with the release.
keep_settings_with() {
    cmp -s "$SCRATCH/millrace.toml" "$PREFIX/releases/$1/.settings" && return
    cp "$PREFIX/releases/$1/.settings" "$SCRATCH/release-settings.before" 2>/dev/null || true
    replace_file "$SCRATCH/millrace.toml" "$PREFIX/releases/$1/.settings"
}

roll_back() {
    local version current
    version=$(release_at previous) || die "there is no release to go back to in $PREFIX"
    current=$(release_at current)
    is_complete "$version" || die "$PREFIX/releases/$version is not whole; nothing was changed"
    say "release $current in $PREFIX goes, $version comes back; settings stay as they are"
    consent "go on?"
    choose_settings_of_rollback "$version"
    check_with_release "$version"
    read_options "$ROOT" "$EFFECTIVE_SETTINGS" && mapfile -t DISKS < <(option_values disk)
    switch_to "$version" || exit 1
    say "release $version $(how_it_is); sudo $PREFIX/current/install.sh --rollback goes forward to $current again"
}

# choose_settings_of_rollback VERSION: the settings in place stay, or what was narrowed since would be open again. If they were never edited and the
# restored release does not understand them, its own return.
choose_settings_of_rollback() {
    EFFECTIVE_SETTINGS=$SETTINGS_FILE
    read_record
    if "$PREFIX/releases/$1/.venv/bin/millrace" config check "$SETTINGS_FILE" >/dev/null 2>&1; then
        replace_file "$PREFIX/current/.settings" "$PREFIX/releases/$1/.settings"
    elif ! is_edited "$SETTINGS_FILE"; then
        EFFECTIVE_SETTINGS=$PREFIX/releases/$1/.settings
    fi
}

# report VERSION: what was done, what a person should know, how to undo it.
report() {
    local line
    for line in "${REMARKS[@]}"; do say "remark: $line"; done
    if [ ${#DONE[@]} = 0 ]; then
        say "nothing had to be changed: release $1 is installed in $PREFIX$([ -z "$WAITS_FOR" ] || echo "; it $(how_it_is)")"
        return
    fi
    cat >&2 <<REPORT

Millrace $1 $(how_it_is): Kafka $LISTEN:$(port_of kafka 9092), syslog $LISTEN:$(port_of syslog 514) (UDP and TCP), HTTP $LISTEN:$(port_of http 8080), senders by HTTP $LISTEN:$(port_of ingest 8081); clients are told $ADVERTISE.
  millrace status            processes, disks, topics          millrace doctor     is this machine fit for it?
  journalctl -u 'millrace*'  what it says                      $SETTINGS_FILE      settings
  logger -n $ADVERTISE -P $(port_of syslog 514) -d --rfc5424 "disk d3 is warm"; millrace topic tail syslog --from-beginning --max 1
WARNING: until docs/security.md is followed, whoever reaches these ports may read and write every record.$(narrower_words)
To undo: $(undo_words); sudo $PREFIX/current/install.sh --uninstall (data, state and settings stay)
REPORT
}

# how_it_is: "serves", or what for it does not yet.
how_it_is() {
    if [ -z "$WAITS_FOR" ]; then echo "serves"
    else echo "waits for $WAITS_FOR of the ZooKeeper ensemble, and serves as soon as more than half of all members run (install the other boxes now; millrace status tells)"; fi
}

narrower_words() {
    case $LISTEN in 0.0.0.0 | ::) echo " sudo ./install.sh --listen ADDRESS narrows it to one network." ;; esac
}

undo_words() {
    if [ -n "$(release_at previous || true)" ]; then echo "sudo $PREFIX/current/install.sh --rollback (to $(release_at previous))"; else echo "there is no release before this one"; fi
}
