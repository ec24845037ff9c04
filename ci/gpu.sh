#!/usr/bin/env bash
# Real engines on a GPU: ci/gpu.sh LABEL=PYTHON [LABEL=PYTHON ...], releases in their order.
# Runs, each into reports/gpu/NAME: the embedded engine on its CUDA back end; vLLM eager with
# recorders, compiled with recorded graphs, and, on the last release, with waits taken out of it;
# what happens after the first generate (reloads, sleep, an engine before); packed int8 weights;
# with SESSIONS=ranks, on two GPUs, tensor and pipeline parallel;
# with ACCELERATE=PYTHON also accelerate. MODEL names another model, JOBS the launches at once.
set -uo pipefail
cd "$(dirname "$0")/.."
if [ $# -eq 0 ]; then
    sed -n '2,7s/^# //p' "$0" >&2
    exit 2
fi
harness=${HARNESS:-.venv/bin/harness}
out=${OUTPUT:-reports/gpu}
matrices=suites/engines/matrices
model=${MODEL:+--model $MODEL}
pythons=()
for each in "$@"; do pythons+=(--python "$each"); done
last=${!#}
worst=0

session() {  # NAME JOBS ARGUMENTS...
    local name=$1 jobs=$2 code=0
    shift 2
    echo "== $name"
    # shellcheck disable=SC2086
    $harness run "$@" $model -j "$jobs" -o "$out/$name" --report "$out/$name/report.html" \
        --junit "$out/$name/junit.xml" || code=$?
    echo "== $name: exit code $code"
    [ "$code" -gt "$worst" ] && worst=$code
}

chosen=" ${SESSIONS:-reference models eager sanitizer graph quantized lifecycle accelerate} "
has() { [[ "$chosen" == *" $1 "* ]]; }

has reference && session reference "${JOBS:-8}" --matrix $matrices/reference_cuda.yaml
has models && session reference-models "${JOBS:-12}" \
    --matrix $matrices/reference_cuda_models.yaml
has eager && session vllm-eager "${JOBS:-10}" --matrix $matrices/vllm_gpu_eager.yaml \
    --engine vllm "${pythons[@]}"
has sanitizer && session vllm-sanitizer "${JOBS:-10}" --matrix $matrices/vllm_gpu_sanitizer.yaml \
    --engine vllm --python "$last"
has graph && session vllm-graph "${JOBS:-8}" --matrix $matrices/vllm_gpu_graph.yaml \
    --engine vllm "${pythons[@]}"
has quantized && session vllm-quantized "${JOBS:-10}" \
    --matrix $matrices/vllm_gpu_quantized.yaml --engine vllm --python "$last"
has ranks && session vllm-ranks "${JOBS:-4}" --matrix $matrices/vllm_gpu_ranks.yaml \
    --engine vllm "${pythons[@]}"
if has lifecycle; then
    session vllm-lifecycle "${JOBS:-8}" --matrix $matrices/vllm_gpu_lifecycle.yaml \
        --engine vllm "${pythons[@]}"
    session vllm-lifecycle-more "${JOBS:-8}" --matrix $matrices/vllm_gpu_lifecycle_more.yaml \
        --engine vllm --python "$last"
    session vllm-lifecycle-sleep 1 --matrix $matrices/vllm_gpu_lifecycle_sleep.yaml \
        --engine vllm --python "$last"
fi
if has accelerate && [ -n "${ACCELERATE:-}" ]; then
    session accelerate 4 --matrix $matrices/accelerate_gpu.yaml --engine accelerate \
        --python "accelerate=$ACCELERATE"
fi
exit "$worst"
