#!/bin/sh
# Print a Python that can carry the project: $PYTHON if set, else the `python3` in use if it is new enough,
# else the newest one found. A name on the PATH may be a launcher without that version: so each one is run.
set -u

usable() {
    command -v "$1" >/dev/null 2>&1 && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

if [ -n "${PYTHON:-}" ]; then
    usable "$PYTHON" && echo "$PYTHON" && exit 0
    echo "PYTHON=$PYTHON is not a Python 3.11 or newer." >&2
    exit 1
fi
for candidate in python3 python3.14 python3.13 python3.12 python3.11 python; do
    usable "$candidate" && echo "$candidate" && exit 0
done
echo "No Python 3.11 or newer found (python3 is: $(python3 --version 2>&1 || echo none))." >&2
echo "Install one, or name it: make run PYTHON=/path/to/python3.12" >&2
exit 1
