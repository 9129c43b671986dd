# Sourced by the scripts beside it: finds Python, installs this project once, sets $root and $python.
#
#   PYTHON=/path/to/python   the interpreter to use
#   MINDGPT_NO_VENV=1        install into the active environment instead of .venv in the project's folder; where that has all that
#                            the project needs, as an image may, nothing is fetched
#
# The second time it only compares a stamp: pyproject.toml, Python's version, the project's folder, the extras. It lies in the
# environment, or, where that is not the user's to write, in the user's cache.

unset CDPATH  # with it `cd` prints the folder
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

say() { echo "setup: $*" >&2; }
refuse() { say "$*"; exit 2; }

# The comment at the head of the calling script, when --help is its first argument.
help_on_request() {
    case "${1-}" in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
}

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

# Is version $1 within pyproject's requires-python = ">=LOW,<HIGH"?
read -r low high < <(sed -n 's/^requires-python *= *">=\([0-9.]*\), *<\([0-9.]*\)".*/\1 \2/p' "$root/pyproject.toml")
allowed() {
    local minor="${1#3.}"
    [[ "$1" == 3.* ]] && ((minor >= ${low#3.} && minor < ${high#3.}))
}

find_python() {
    local name version
    if [[ -n "${PYTHON-}" ]]; then
        version="$(version_of "$PYTHON")" || refuse "PYTHON=$PYTHON does not run: give the path of a Python >=$low,<$high"
        allowed "$version" || refuse "PYTHON=$PYTHON is Python $version: MindSpore needs >=$low,<$high"
        python="$PYTHON"
        return
    fi
    local names=(python3.12 python3.11 python3 python)
    [[ "${MINDGPT_NO_VENV-}" == 1 ]] && names=(python python3)  # the active environment's, not any that fits
    for name in "${names[@]}"; do
        version="$(version_of "$name")" && allowed "$version" && { python="$(command -v "$name")"; return; }
    done
    refuse "no Python >=$low,<$high found (tried ${names[*]}): install one, or name it by PYTHON=/path/to/python"
}

# For what only looks: the Python that set-up has taken or would take, else any.
any_python() {
    if [[ "${MINDGPT_NO_VENV-}" != 1 && -x "$root/.venv/bin/python" ]]; then python="$root/.venv/bin/python"; return; fi
    python="$( (find_python 2>/dev/null; echo "$python") )" ||
        python="$(command -v "${PYTHON:-python3}")" || refuse "no Python found: install one, or name it by PYTHON=/path/to/python"
}

make_venv() {
    local venv="$root/.venv" version
    [[ -z "${PYTHON-}" ]] || find_python
    if version="$(version_of "$venv/bin/python")" && allowed "$version"; then
        [[ -z "${PYTHON-}" || "$version" == "$(version_of "$PYTHON")" ]] ||
            refuse "PYTHON=$PYTHON is not the Python $version of $venv: remove that folder to change it"
    else
        [[ -n "${python-}" ]] || find_python
        say "creating $venv with Python $(version_of "$python")"
        run_logged "creating $venv failed" "$python" -m venv --clear "$venv"
    fi
    python="$venv/bin/python"
}

# run_logged MESSAGE COMMAND...: quiet; when it fails, its last lines and exit code 1.
run_logged() {
    local message="$1" log
    log="$(mktemp)"
    if ! "${@:2}" >"$log" 2>&1; then
        tail -n 15 "$log" >&2
        say "$message; all of its output: $log"
        exit 1
    fi
    rm -f "$log"
}

# has_all EXTRAS: whether the environment has what building and running the project takes, by pyproject.toml.
has_all() {
    (cd "$root" && "$python" -c '
import sys, tomllib
from importlib.metadata import version
from pip._vendor.packaging.requirements import Requirement
content = tomllib.load(open("pyproject.toml", "rb"))
extras = content["project"]["optional-dependencies"]
needs = [*content["build-system"]["requires"], *content["project"]["dependencies"],
         *(one for extra in sys.argv[1].split() for one in extras[extra])]
sys.exit(not all(r.specifier.contains(version(r.name)) for r in map(Requirement, needs)))' "$1" 2>/dev/null)
}

# setup [EXTRA...]: after it, "$python" has the project and these extras of pyproject.toml.
setup() {
    local prefix stamp key extras lock="$root/.setup.lock" how=()
    [[ -w "$root" ]] || lock="${TMPDIR:-/tmp}/mindgpt-setup-$UID.lock"
    exec 9>>"$lock"  # two scripts started at once: the second waits
    flock -n 9 || { say "another set-up is at work, waiting for it"; flock 9; }
    if [[ "${MINDGPT_NO_VENV-}" == 1 ]]; then find_python; else make_venv; fi
    prefix="$("$python" -c 'import sys; print(sys.prefix)')"
    stamp="$prefix/.mindgpt-setup"
    if [[ ! -w "$prefix" && ! -f "$stamp" ]]; then
        stamp="${XDG_CACHE_HOME:-$HOME/.cache}/mindgpt/setup-$(cksum <<<"$prefix" | cut -d' ' -f1)"
        mkdir -p "${stamp%/*}"
    fi
    key="$(sha256sum <"$root/pyproject.toml" | cut -c1-64) $(version_of "$python") $root"
    extras="$*"
    if [[ -f "$stamp" && "$(head -n 1 "$stamp")" == "$key" ]]; then  # extras add up
        extras="$(printf '%s\n' $(sed -n 's/^extras://p' "$stamp") "$@" | sort -u | xargs)"
    fi
    if [[ ! -f "$stamp" || "$(cat "$stamp")" != "$key"$'\n'"extras:$extras" ]]; then
        say "installing the project and what it needs${extras:+ (extras: $extras)}; this takes a few minutes once"
        rm -f "$stamp"
        [[ "${MINDGPT_NO_VENV-}" != 1 ]] || ! has_all "$extras" || how=(--no-deps --no-build-isolation)
        (cd "$root" && run_logged "the installation failed" "$python" -m pip install ${how[@]+"${how[@]}"} -e ".${extras:+[${extras// /,}]}") || exit 1
        printf '%s\nextras:%s\n' "$key" "$extras" >"$stamp"
        say "ready"
    fi
    exec 9<&-
    export PYTHONUTF8=1  # samples are printed in every language, whatever the locale
    export PYTHONSAFEPATH=1  # a folder `data` or `train` where you stand is not this project's
}
