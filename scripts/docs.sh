#!/bin/sh
# Build the documentation's site in site/. Its tools have an environment of their own, .build/docs, so that .venv does not
# grow by them; a second run with an unchanged lock uses it as it is.
set -eu
cd "$(dirname "$0")/.."

venv=.build/docs
want=$(cksum <requirements/docs.lock; pwd)
if [ "$(cat "$venv/.bootstrapped" 2>/dev/null)" != "$want" ]; then
    rm -rf "$venv"
    .venv/bin/python -m venv --without-pip "$venv"
    .venv/bin/python -m pip --python "$venv" --disable-pip-version-check --quiet install --require-hashes -r requirements/docs.lock
    printf '%s' "$want" >"$venv/.bootstrapped"
fi
# The signatures' formatter is looked for in PATH. The notice is about a later major version of mkdocs.
PATH="$PWD/$venv/bin:$PATH" NO_MKDOCS_2_WARNING=1 "$venv/bin/python" -m mkdocs --quiet build --strict
echo "docs: site/index.html"
