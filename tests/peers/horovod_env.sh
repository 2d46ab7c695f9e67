#!/usr/bin/env bash
# An environment in DIR with stemdl, torch and Horovod, both over the MPI of the mpich package, for horovod_bench.py.
#
#     tests/peers/horovod_env.sh DIR
#
# Horovod is built from source: about seven minutes of two cores and 2 GB for each compiler. A second call finds what is
# there. PYTHON chooses the interpreter (python3), MAKEFLAGS the number of compilers (-j2).
set -euo pipefail

readonly HOROVOD=0.28.1
readonly TORCH=2.13.0

fail() {
  printf 'horovod_env.sh: %s\n' "$1" >&2
  exit 2
}

(( $# == 1 )) || fail 'usage: horovod_env.sh DIR'
python=${PYTHON:-python3}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
mkdir -p "$1"
place=$(cd "$1" && pwd -P)

command -v "$python" >/dev/null || fail "there is no \"$python\" here: set PYTHON to a Python 3.11"
command -v g++ >/dev/null || fail 'there is no g++ here (Debian: apt-get install g++)'
command -v make >/dev/null || fail 'there is no make here (Debian: apt-get install make)'

"$place/bin/python" -c '' 2>/dev/null || "$python" -m venv --clear "$place"
export PATH="$place/bin:$PATH"
install=("$place/bin/python" -m pip --disable-pip-version-check install --quiet -c "$root/constraints.txt")

# torch first: beside others pip may choose a build for GPUs.
"${install[@]}" "torch==$TORCH"
# What Horovod's build and its Python need; MPI for both sides; what stemdl's training imports.
"${install[@]}" 'setuptools<81' wheel packaging cffi cloudpickle psutil PyYAML numpy mpich mpi4py pydantic rich h5py
"${install[@]}" --no-deps --no-build-isolation -e "$root"

# Its build files are older than cmake 4.
if [[ $(cmake --version 2>/dev/null | head -1) != 'cmake version 3.'* ]]; then
  "${install[@]}" 'cmake<4'
fi

# This torch's headers need C++17, Horovod's build asks for C++14.
cat > "$place/bin/cxx17" <<'END'
#!/usr/bin/env bash
arguments=()
for argument in "$@"; do
  [[ $argument == -std=* ]] || arguments+=("$argument")
done
exec g++ "${arguments[@]}" -std=gnu++17
END
chmod +x "$place/bin/cxx17"

sound() {
  "$place/bin/python" -c '
import sys, horovod, horovod.torch as hvd
sys.exit(not (horovod.__version__ == sys.argv[1] and hvd.mpi_built()))
' "$HOROVOD" 2>/dev/null
}

if ! sound; then
  echo "building Horovod $HOROVOD against torch $TORCH"
  CXX="$place/bin/cxx17" MAKEFLAGS="${MAKEFLAGS:--j2}" HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 \
    HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1 HOROVOD_CPU_OPERATIONS=MPI \
    "${install[@]}" --no-build-isolation --no-deps --no-binary horovod --no-cache-dir --force-reinstall "horovod==$HOROVOD"
  sound || fail "Horovod $HOROVOD was built, but cannot be used with MPI: $place/bin/horovodrun --check-build says more"
fi
echo "Horovod $HOROVOD is in $place: $place/bin/python tests/peers/horovod_bench.py"
