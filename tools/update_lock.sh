#!/bin/sh
# Resolve the dependencies of pyproject.toml anew and write requirements.lock, and requirements-batch.lock for the extra
# `batch`, which is resolved beside them.
#
# Some packages need others under one Python only, so each supported one that is here adds what is missing; PYTHONS names
# others.
set -eu
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
found=
for python in ${PYTHONS-python3.11 python3.12 python3.13}; do
    if ! command -v "$python" >/dev/null; then
        echo "$python is not here: what it alone needs is not locked (PYTHONS=\"/path/to/$python …\" names others)" >&2
        continue
    fi
    PYTHON=$python CONSTRAINTS=$found sh tools/make_venv.sh "$scratch/venv"
    "$scratch/venv/bin/python" -m pip freeze --exclude-editable | sed 's/+[a-z0-9.]*$//' >> "$scratch/all"
    LC_ALL=C sort -fu "$scratch/all" > "$scratch/found"
    found=$scratch/found
    rm -rf "$scratch/venv"
done
[ -n "$found" ] || { echo "none of the Pythons was found" >&2; exit 1; }
{
    echo "# Exact versions of the reference environment, used as pip constraints:"
    echo "#   pip install -c requirements.lock -e '.[all]'"
    echo "# Packages that only other platforms need (such as CUDA libraries) are chosen by those that need them."
    echo "# Written by tools/update_lock.sh (\`make lock\`)."
    cat "$found"
} > "$scratch/lock"
mv "$scratch/lock" requirements.lock

# What the extra `batch` needs otherwise: all of requirements.lock holds but for the packages that Snakemake wants older.
grep -viE '^(packaging|smart_open)==' requirements.lock > "$scratch/constraints"
python=$(sh tools/find_python.sh)
"$python" -m venv "$scratch/batch"
"$scratch/batch/bin/python" -m pip install -q --disable-pip-version-check -c "$scratch/constraints" \
    $("$python" -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["batch"])')
{
    sed -n '/^#/p' requirements-batch.lock
    "$scratch/batch/bin/python" -m pip freeze | grep -vxFf requirements.lock | LC_ALL=C sort -fu
} > "$scratch/batch.lock"
mv "$scratch/batch.lock" requirements-batch.lock
