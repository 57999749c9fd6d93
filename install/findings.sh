# shellcheck shell=bash
# What the preflight found, a line each as `millrace doctor` writes them, and what was done. Sourced by install.sh.

FINDINGS=()
PROBLEM_COUNT=0
DONE=()
REMARKS=()

ok() { FINDINGS+=("ok        $(printf '%-10s' "$1")  $2"); }
warning() { FINDINGS+=("warning   $(printf '%-10s' "$1")  $2"); }
problem() {
    FINDINGS+=("problem   $(printf '%-10s' "$1")  $2")
    PROBLEM_COUNT=$((PROBLEM_COUNT + 1))
}

print_findings() { [ ${#FINDINGS[@]} = 0 ] || printf '%s\n' "${FINDINGS[@]}"; }

# did WORDS: one thing that was changed. remark WORDS: one that a person should know.
did() {
    DONE+=("$1")
    say "  $1"
}
remark() { REMARKS+=("$1"); }

# mib BYTES: for people.
mib() { echo "$((($1 + 524288) / 1048576)) MiB"; }
gib() { awk -v bytes="$1" 'BEGIN { printf "%.1f GiB\n", bytes / 1073741824 }'; }
