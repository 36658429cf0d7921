#!/bin/sh
# Resolve the dependencies of pyproject.toml anew and write requirements.lock.
set -eu
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
CONSTRAINTS=${CONSTRAINTS-} sh tools/make_venv.sh "$scratch/venv"
{
    echo "# Exact versions of the reference environment, used as pip constraints:"
    echo "#   pip install -c requirements.lock -e '.[all]'"
    echo "# Packages that only other platforms need (such as CUDA libraries) are chosen by those that need them."
    echo "# Written by tools/update_lock.sh (\`make lock\`)."
    "$scratch/venv/bin/python" -m pip freeze --exclude-editable | sed 's/+[a-z0-9.]*$//'
} > "$scratch/lock"
mv "$scratch/lock" requirements.lock
