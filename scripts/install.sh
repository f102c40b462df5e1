#!/bin/sh
# install.sh VENV EXTRAS STAMP: a virtual environment with this checkout and those extras, unless STAMP says that it is
# there already. What an interrupted or failed installation left behind is not trusted: the next one begins anew.
set -u
venv=$1 extras=$2 stamp=$1/$3
begun=$venv/.begun ours=$venv/.ours log=$venv/install.log
command="make${MAKECMDGOALS:+ $MAKECMDGOALS}"

# A build that air runs on: exit status 0. Others say why not.
CHECK='
import sys, sysconfig
found = sys.version.split()[0]
if not (3, 11) <= sys.version_info[:2] < (3, 14):
    sys.exit(f"air needs Python 3.11, 3.12 or 3.13; this is {found}.")
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    sys.exit(f"air needs a Python with its global lock; this is a free-threaded build of {found}.")
'

# The first line, before the seconds that Python and pip take to start; then one each so many seconds with how much there
# is, until the script ends, however it does.
every=${AIR_SAY_EVERY_S:-20}
waiting=
announce() {
    [ -z "$waiting" ] || return 0
    echo "installing what \`$command\` needs into $venv (once; some minutes)"
    temporary=$(mktemp -d "${TMPDIR:-/tmp}/air-install.XXXXXX") || stop "no temporary folder can be made in ${TMPDIR:-/tmp}." "free some GB there, then $command again"
    say_how_much &
    waiting=$!
    trap 'kill "$waiting" 2>/dev/null; rm -rf "$temporary"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

say_how_much() {
    trap - EXIT INT TERM
    while sleep "$every" >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
        kb=$(du -skc "$venv" "$temporary" 2>/dev/null | tail -n 1 | cut -f 1)
        printf '  %s MB are there\n' "$((${kb:-0} / 1024))"
    done
}

VERSION='import sys; print("%d.%d" % sys.version_info[:2])'

stop() {
    printf 'air: %s\n' "$1" >&2
    [ $# -lt 2 ] || printf '  fix: %s\n' "$2" >&2
    exit 1
}

find_python() {
    for python in "${PYTHON:-python3}" $([ "${PYTHON:-python3}" = python3 ] && echo python3.13 python3.12 python3.11); do
        if command -v "$python" >/dev/null 2>&1; then
            refused=$("$python" -c "$CHECK" 2>&1) && return
            first=${first:-$refused}
        fi
    done
    stop "${first:-there is no ${PYTHON:-python3} here.}" "install Python 3.12 and name it: $command PYTHON=python3.12"
}

has_pip() {
    [ -x "$venv/bin/python" ] || return 1
    announce
    "$venv/bin/python" -m pip --version >/dev/null 2>&1
}

make_venv() {
    if [ ! -e "$ours" ] && [ -n "$(ls -A "$venv" 2>/dev/null)" ]; then
        stop "$venv is there, was not made by air, and has no pip to install with." \
            "add pip to it, or let air make another: $command VENV=.venv-air"
    fi
    find_python
    announce
    made=$("$python" -m venv --clear --without-pip "$venv" 2>&1 && "$venv/bin/python" -m ensurepip --default-pip 2>&1 && touch "$ours") && return
    case $made in
    *No\ module\ named\ *ensurepip*) stop "this Python cannot make virtual environments: $made" "on Debian and Ubuntu, apt install python3-venv" ;;
    *No\ space*) stop "the disk is full: no virtual environment could be made in $venv." "free some GB, then $command again" ;;
    *) stop "no virtual environment could be made in $venv: $made" ;;
    esac
}

# What comes with Python may be years old: 23.2 takes 80 s of a processor for `make test`, 26.3 takes 46, and without an
# index it does as well as it did.
OLD_PIP='from importlib.metadata import version; raise SystemExit(int(version("pip").split(".")[0]) >= 26)'
renew_pip() {
    [ -e "$ours" ] && "$venv/bin/python" -c "$OLD_PIP" 2>/dev/null || return 0
    TMPDIR=$temporary "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile --retries 0 --timeout 5 --upgrade pip >/dev/null 2>&1
}

# Its lines go to the log; names of packages are shown, so that minutes are not silent. Python compiles what is imported;
# pip would compile everything, of which that is a twentieth, and take two thirds of the processor's time for it.
run_pip() {
    TMPDIR=$temporary "$venv/bin/python" -m pip install --disable-pip-version-check --progress-bar off --no-compile "$@" -e ".[$extras]" 2>&1
    echo "exit status $?"
}

show() {
    while IFS= read -r line; do
        printf '%s\n' "$line" >>"$log"
        case $line in
        Collecting\ *) line=${line#Collecting } && printf '  %s\n' "${line%% *}" ;;
        Installing\ collected*) printf '  installing all of them\n' ;;
        esac
    done
}

explain() {
    tail -n 15 "$log" >&2
    if grep -qiE 'no space left|disk quota' "$log"; then
        stop "the disk is full: not everything could be installed into $venv." "free some GB (torch alone takes one), then $command again"
    elif grep -qiE 'name resolution|connection (refused|reset|broken)|newconnectionerror|unreachable|timed out|retries exceeded|could not find a version|ssl' "$log"; then
        stop "the packages could not be fetched; the lines above say which." \
            "check the network, a proxy (HTTPS_PROXY) or the package index (PIP_INDEX_URL), then $command again: what was fetched is kept"
    fi
    stop "the installation failed; all of it is in $log." "mend what the lines above name, then $command again"
}

# Another interpreter than the one that made what is there: named, and not silently left unused.
refuse_other_python() {
    [ -n "${PYTHON:-}" ] && [ "$PYTHON" != python3 ] && [ -x "$venv/bin/python" ] || return 0
    command -v "$PYTHON" >/dev/null 2>&1 || stop "there is no $PYTHON here." "install it, or leave PYTHON out: $venv is there"
    here=$("$venv/bin/python" -c "$VERSION") asked=$("$PYTHON" -c "$VERSION")
    [ "$here" = "$asked" ] || stop "$venv is of Python $here, and $PYTHON is $asked." "$command VENV=.venv-new PYTHON=$PYTHON, or leave PYTHON out"
}

[ -e "$begun" ] || refuse_other_python
[ ! -e "$begun" ] && [ -e "$stamp" ] && [ -z "$(find pyproject.toml -newer "$stamp")" ] && exit 0

anew=
if [ -e "$begun" ] && [ ! -e "$ours" ]; then
    anew=--force-reinstall # somebody's own environment: not ours to clear
elif [ -e "$begun" ] || ! has_pip; then
    make_venv
fi
"$venv/bin/python" -c "$CHECK" || stop "that is the Python of $venv." "$command VENV=.venv-new PYTHON=python3.12"
touch "$begun" || stop "$venv cannot be written to."
announce
: >"$log"
renew_pip
run_pip $anew | show
[ "$(tail -n 1 "$log")" = "exit status 0" ] || explain
rm -f "$begun"
touch "$stamp"
