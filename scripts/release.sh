#!/bin/sh
# Build sdist and wheel into dist/, install the wheel in an empty environment and try it. Nothing is uploaded.
# The wheel is built from the sdist, so a file that the sdist lacks fails the run. The dependencies are the newest that
# pyproject.toml allows, as users get them, not the locked ones.
set -eu
cd "$(dirname "$0")/.."
here=$(pwd)

rm -rf dist build
.venv/bin/python -m build --no-isolation --outdir dist .
# Outside the checkout: the wheel must not find the sources beside it.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
.venv/bin/python -m venv "$work/venv"
"$work/venv/bin/python" -m pip --disable-pip-version-check --quiet install dist/*.whl
version=$(.venv/bin/python -c 'import mqtrail; print(mqtrail.__version__)')
cd "$work" && "$work/venv/bin/python" -I "$here/scripts/try_release.py" "$version"
cd "$here" && ls -l dist
