#!/bin/sh
# Make .venv from nothing but Python 3.11+: the locked packages and mqtrail itself, in place.
# A second run with unchanged locks returns at once. Usage: scripts/bootstrap.sh [python]
set -eu
cd "$(dirname "$0")/.."
python=${1:-python3}

if ! command -v "$python" >/dev/null 2>&1; then
    echo "bootstrap: no '$python' found; expected Python 3.11 or newer. Install it, or name one: make PYTHON=/path/to/python3.11" >&2
    exit 2
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "bootstrap: '$python' is $("$python" -V 2>&1); expected 3.11 or newer. Name one: make PYTHON=/path/to/python3.11" >&2
    exit 2
fi
if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    echo "bootstrap: '$python' has no venv or ensurepip module; install them (Debian, Ubuntu: apt install python3-venv)" >&2
    exit 2
fi

stamp=".venv/.bootstrapped"
want=$(cat requirements/build.lock requirements/all.lock pyproject.toml | cksum; pwd)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
    exit 0
fi

echo "bootstrap: making .venv (about 1.3 GB on disk, 0.7 GB to download the first time) ..." >&2
rm -f "$stamp"
# A virtual environment holds its own path: one that was moved or copied here is made anew.
if [ -x .venv/bin/python ] && ! .venv/bin/pip --version >/dev/null 2>&1; then
    rm -rf .venv
fi
[ -x .venv/bin/python ] || "$python" -m venv .venv
pip() { .venv/bin/python -m pip --disable-pip-version-check --quiet "$@"; }
pip install --require-hashes -r requirements/build.lock
# Python compiles what is used: to compile everything takes as long as to install it.
pip install --no-compile --require-hashes --no-build-isolation -r requirements/all.lock
pip install --no-deps --no-build-isolation --editable .
printf '%s' "$want" >"$stamp"
echo "bootstrap: ready" >&2
