#!/bin/sh
# Create the virtual environment FOLDER (default .venv) and install the locked dependencies into it.
# With CONSTRAINTS= (empty) the lock is left out: that is how tools/update_lock.sh resolves anew.
set -eu
cd "$(dirname "$0")/.."
folder=${1:-.venv}
constraints=${CONSTRAINTS-requirements.lock}

if ! "$folder/bin/python" -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
    python=$(sh tools/find_python.sh)
    echo "Creating $folder with $("$python" --version)"
    if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        echo "$python cannot make virtual environments (Debian and Ubuntu: apt-get install python3-venv)." >&2
        exit 1
    fi
    "$python" -m venv --clear "$folder"
fi

echo "Installing dependencies (once; PyTorch alone is 200 MB, with CUDA some GB)"
quiet=-q
[ -t 1 ] && quiet=
"$folder/bin/python" -m pip install $quiet --disable-pip-version-check ${constraints:+-c "$constraints"} -e '.[all]'
