#!/usr/bin/env bash
# Everything that can be measured on a machine with an NVIDIA GPU, in one run of at most ten minutes: our kernels, checked and timed,
# and other programs' on the same shapes. Needs the `taper` binary and this folder; Python, torch and compute-sanitizer are used where
# they are, nothing is installed, no setting of the GPU is changed.
#
#     bench/gpu.sh --taper BIN --out DIR [--model FILE.gguf] [--quick] [--only STEP]... [--seconds N] [--device cuda:N]
#
#   --model FILE   the model of the step `model`, which there is with it alone, and the shape of `peers-model`
#   --quick        few shapes and short samples: does everything run?
#   --only STEP    this step alone; may be given several times
#   --seconds N    time for all steps together, 570 unless told otherwise; a step gets what is left of it, at most its own limit
#
# Steps, in order; ours and peers of one kind follow each other, so that the machine is in the same state:
#
#   machine            nvidia-smi, `taper doctor`, versions of Python and torch
#   selftest           every kernel against plain loops
#   bandwidth          read bandwidth, what shares are of
#   tune               the launches of products; kept in DIR/cache, where the step `model` finds them, with --model those of its matrices
#   attention gemm softmax model, and peers-attention peers-gemm peers-softmax peers-model
#   peers-compile      products of 1 and 8 rows as torch.compile makes them, seconds for each shape
#   memcheck racecheck synccheck   compute-sanitizer over the self test
#
# In DIR: STEP.log, STEP.jsonl (rows), steps.tsv (what became of each step), and report.json and report.html of all of them.
# A step is `ok`, `failed` (or out of time: its rows until then are kept), `not offered` (this binary does not do it on a GPU), or
# `absent` (the machine lacks what it needs). Exit status: 0 all ok; 1 a step failed; 3 none failed, some are not offered or
# absent; 2 the arguments are wrong or DIR cannot be written.
set -euo pipefail

STEPS=(machine selftest bandwidth tune attention peers-attention gemm peers-gemm softmax peers-softmax model peers-model
    peers-compile memcheck racecheck synccheck)
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# Kept for the report at the end.
RESERVE=15

usage_error() { printf 'gpu.sh: %s (usage: see the head of %s)\n' "$1" "${BASH_SOURCE[0]}" >&2; exit 2; }

taper='' out='' model='' quick=0 seconds=570 device=cuda only=()
while [ $# -gt 0 ]; do
    case $1 in
    --quick) quick=1; shift; continue ;;
    --help | -h) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    --taper | --out | --model | --only | --seconds | --device) [ $# -ge 2 ] || usage_error "$1 needs a value" ;;
    *) usage_error "unknown argument $1" ;;
    esac
    case $1 in
    --taper) taper=$2 ;;
    --out) out=$2 ;;
    --model) model=$2 ;;
    --seconds) seconds=$2 ;;
    --device) device=$2 ;;
    --only)
        [[ " ${STEPS[*]} " == *" $2 "* ]] || usage_error "no step $2; there are ${STEPS[*]}"
        only+=("$2")
        ;;
    esac
    shift 2
done
[ -n "$taper" ] || usage_error "--taper is missing"
[ -n "$out" ] || usage_error "--out is missing"
[[ $taper == */* ]] || taper=$(command -v "$taper") || usage_error "--taper is no program"
if ! [ -f "$taper" ] || ! [ -x "$taper" ]; then usage_error "$taper is no program"; fi
[ -z "$model" ] || [ -r "$model" ] || usage_error "$model cannot be read"
[[ $seconds =~ ^[1-9][0-9]*$ ]] || usage_error "--seconds is a whole number"
command -v timeout >/dev/null || usage_error "the command timeout is needed"
if ! { mkdir -p -- "$out" && : >"$out/steps.tsv"; } 2>/dev/null; then
    echo "gpu.sh: $out cannot be written" >&2
    exit 2
fi
taper=$(realpath -- "$taper")
[ -z "$model" ] || model=$(realpath -- "$model")
cd -- "$out"
rm -f -- "${STEPS[@]/%/.log}" "${STEPS[@]/%/.jsonl}" "${STEPS[@]/%/.html}" report.log report.json report.html

# Shapes, once for both sides: `taper bench` and gpu_peers.py read the same flags.
# NxK of a Llama of 8B (qkv, o, gate and up, down), of Llama 2 7B and of one of 1B; the first alone with --quick.
shapes=6144x4096,4096x4096,28672x4096,4096x14336,12288x4096,22016x4096,4096x11008,3072x2048,2048x2048,16384x2048,2048x8192
rows=1,2,4,8,16,32,64,128,256
heads=32/8x128,32/8x64 batch=1,8,32 keys=1024,4096,8192,32768 powers=10,12,14,17,20
cases=(--case tg64@1024 --case b8@1024 --case b32@1024)
repeat=7 time_ms=150 peers=(--rounds 7)
tuned=()
if [ -n "$model" ]; then tuned=(--model "$model"); else for shape in ${shapes//,/ }; do tuned+=(--shape "BF16 $shape"); done; fi
if [ $quick = 1 ]; then
    [ -n "$model" ] || tuned=(--shape "BF16 4096x4096")
    shapes=4096x4096 rows=1,8 heads=32/8x128 batch=1 keys=1024,8192 powers=12,17 cases=(--case tg64@1024) repeat=3 time_ms=20
    peers=(--rounds 3 --bandwidth-mib 1024)
fi

find_program() {
    local folder
    for folder in "" /usr/local/cuda/bin/ "${CUDA_HOME:-/nowhere}/bin/" "${CUDA_HOME:-/nowhere}/compute-sanitizer/"; do
        command -v "$folder$1" && return
    done
    return 1
}
nvidia_smi=$(find_program nvidia-smi) || nvidia_smi=''
sanitizer=$(find_program compute-sanitizer) || sanitizer=''
python=$(find_program python3) || python=''
has_gpu=0
if [ -n "$nvidia_smi" ] && timeout 20 "$nvidia_smi" -L 2>/dev/null | grep -q '^GPU'; then has_gpu=1; fi
torch=''
if [ -n "$python" ]; then
    torch=$(timeout 90 "$python" -c 'import torch; print(torch.__version__, "with" if torch.cuda.is_available() else "without", "a GPU")' \
        2>/dev/null) || torch=''
    if [[ $torch == *" with a GPU" ]]; then has_gpu=1; fi
fi
commit=$(timeout 20 "$taper" doctor --json --bandwidth-mib 0 2>/dev/null | sed -n 's/.*"commit":"\([^"]*\)".*/\1/p') || commit=''

child='' interrupted=0
on_signal() {
    interrupted=1
    [ -z "$child" ] || kill -TERM "$child" 2>/dev/null || true
}
trap on_signal INT TERM HUP

failed=() left_out=()
# note STEP STATE SECONDS WHY
note() {
    printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$4" >>steps.tsv
    printf '== %-16s %-12s %4ss  %s\n' "$1" "$2" "$3" "$4"
    case $2 in
    ok) ;;
    failed) failed+=("$1") ;;
    *) left_out+=("$1") ;;
    esac
}

# bounded STEP LIMIT COMMAND...: runs it with what is left of the time, into STEP.log; `spent` and the status are the outcome.
bounded() {
    local step=$1 limit=$2 left=$((seconds - RESERVE - SECONDS)) begin=$SECONDS status=0
    shift 2
    spent=0
    [ "$limit" -le "$left" ] || limit=$left
    [ "$limit" -ge 2 ] || return 125
    printf '$ %s\n' "$*" >>"$step.log"
    # In the background, because a trap waits for what runs in front.
    timeout --kill-after=5 "$limit" "$@" >>"$step.log" 2>&1 </dev/null &
    child=$!
    wait "$child" || status=$?
    # A signal ends the wait before the child.
    if [ $interrupted = 1 ]; then wait "$child" 2>/dev/null || true; fi
    child=''
    spent=$((SECONDS - begin))
    return "$status"
}

last_line() { grep -v '^[[:space:]]*$' "$1.log" 2>/dev/null | tail -n 1 | tr '\t' ' ' | cut -c 1-200 || true; }

# outcome STEP STATUS: what became of a command of ours or of a peer's.
outcome() {
    local step=$1 status=$2 line
    line=$(last_line "$step")
    if [ $interrupted = 1 ]; then note "$step" failed "$spent" "interrupted; the last line was: $line"; return; fi
    case $status in
    0) ;;
    124 | 137) note "$step" failed "$spent" "out of time; the last line was: $line"; return ;;
    125) note "$step" failed "$spent" "no time left"; return ;;
    2)
        # The binary ends with 2 before anything runs where the device cannot do what the command asks of it.
        if grep -qE 'GPUs? yet|unrecognized subcommand' "$step.log"; then note "$step" 'not offered' "$spent" "$line"; return; fi
        if [ $has_gpu = 0 ] && grep -qE -- '--device cuda' "$step.log"; then note "$step" absent "$spent" "$line"; return; fi
        note "$step" failed "$spent" "status 2: $line"
        return
        ;;
    *) note "$step" failed "$spent" "status $status: $line"; return ;;
    esac
    # Success that proves nothing is none.
    case $step in
    selftest)
        if ! grep -qE '[1-9][0-9]* checks, all passed' selftest.log; then note "$step" failed "$spent" "no checks: $line"; return; fi
        if ! grep -qE '^GPU ' selftest.log; then note "$step" failed "$spent" "the checks were not of a GPU: $line"; return; fi
        ;;
    machine | memcheck | racecheck | synccheck) ;;
    tune)
        if ! grep -q 'as chosen' tune.log; then note "$step" failed "$spent" "nothing was chosen: $line"; return; fi
        ;;
    *)
        if ! grep -q '"median"' "$step.jsonl" 2>/dev/null; then note "$step" failed "$spent" "no rows: $line"; return; fi
        if [[ $step != peers-* ]] && ! grep -qiE '"(isa|machine)": ?"[^"]*(cuda|nvidia|sm_[0-9])' "$step.jsonl"; then
            note "$step" failed "$spent" "the rows are not of a GPU"
            return
        fi
        ;;
    esac
    note "$step" ok "$spent" "$line"
}

# ours STEP LIMIT ARGUMENTS...: a command of ours on the GPU.
ours() {
    local step=$1 limit=$2 status=0
    shift 2
    bounded "$step" "$limit" "$taper" "$@" --device "$device" || status=$?
    outcome "$step" "$status"
}

# peers STEP LIMIT ARGUMENTS...: gpu_peers.py, which leaves cases out that would begin in the last fifth of its time.
peers() {
    local step=$1 limit=$2 status=0 left
    shift 2
    if [ -z "$torch" ]; then note "$step" absent 0 "python3 with torch"; return; fi
    left=$((seconds - RESERVE - SECONDS))
    [ "$limit" -le "$left" ] || limit=$left
    if [ $has_gpu = 0 ]; then note "$step" absent 0 "a GPU that torch can use"; return; fi
    bounded "$step" "$limit" "$python" "$HERE/gpu_peers.py" "$1" --device "$device" --json "$step.jsonl" --commit "${commit:-unknown}" \
        --seconds $((limit * 4 / 5)) "${peers[@]}" "${@:2}" || status=$?
    outcome "$step" "$status"
}

# sanitized TOOL LIMIT: the self test under a tool of compute-sanitizer.
sanitized() {
    local step=$1 status=0
    if [ -z "$sanitizer" ]; then note "$step" absent 0 "compute-sanitizer"; return; fi
    bounded "$step" "$2" "$sanitizer" --tool "$step" --error-exitcode 86 "$taper" selftest --device "$device" || status=$?
    if grep -qE 'Device not supported' "$step.log"; then
        note "$step" absent "$spent" "compute-sanitizer does not know this device"
    elif [ $status = 86 ]; then
        note "$step" failed "$spent" "$(grep -E 'SUMMARY' "$step.log" | tail -n 1 | cut -c 1-200)"
    elif [ $status = 0 ] && ! grep -qE 'SUMMARY: 0 ' "$step.log"; then
        note "$step" failed "$spent" "no summary without errors: $(grep -E 'SUMMARY' "$step.log" | tail -n 1 | cut -c 1-200)"
    else
        outcome "$step" "$status"
    fi
}

# What cannot be had says so and is no failure: this step describes.
machine() {
    {
        date -u +%FT%TZ
        uname -srm
        "$taper" --version 2>&1 || true
        echo "python3: ${python:-absent}; torch: ${torch:-absent}; compute-sanitizer: ${sanitizer:-absent}"
        if [ -n "$nvidia_smi" ]; then
            local asked=name,driver_version,memory.total,memory.used,clocks.sm,clocks.mem,clocks.max.sm,power.limit,temperature.gpu
            timeout 20 "$nvidia_smi" --format=csv "--query-gpu=$asked" || true
        else
            echo "nvidia-smi: absent"
        fi
    } >machine.log 2>&1
    local status=0
    bounded machine 30 "$taper" doctor --json --bandwidth-mib 0 || status=$?
    if [ $status = 0 ] && [ $has_gpu = 0 ]; then note machine absent "$spent" "nvidia-smi lists no GPU"; else outcome machine "$status"; fi
}

run_step() {
    local own=(--json "$1.jsonl" --report "$1.html" --bandwidth-mib 1024)
    case $1 in
    machine) machine ;;
    selftest) ours selftest 90 selftest ;;
    bandwidth) ours bandwidth 30 bench bandwidth "${own[@]}" ;;
    # Kept beside the rows: what this run measures is nobody else's setting.
    tune) TAPER_CACHE=$PWD/cache ours tune 45 tune --repeat "$(((repeat + 1) / 2))" "${tuned[@]}" ;;
    attention) ours attention 60 bench attention "${own[@]}" --heads "$heads" --batch "$batch" --keys "$keys" --kv bf16 --ring-mib 256 \
        --candle-keys 0 --repeat "$repeat" --time-ms "$time_ms" ;;
    gemm) ours gemm 75 bench gemm "${own[@]}" --type bf16 --shape "$shapes" --rows "$rows" --ring-mib 256 --repeat "$repeat" \
        --time-ms "$((time_ms / 5))" ;;
    softmax) ours softmax 30 bench softmax "${own[@]}" --powers "$powers" --ring-mib 256 --time-ms "$time_ms" ;;
    model) TAPER_CACHE=$PWD/cache ours model 75 bench model "${own[@]}" --model "$model" "${cases[@]}" --fill random --repeat "$((repeat / 3 + 1))" ;;
    peers-attention) peers "$1" 75 attention --heads "$heads" --batch "$batch" --keys "$keys" ;;
    peers-gemm) peers "$1" 75 gemm --shape "$shapes" --rows "$rows" ;;
    peers-softmax) peers "$1" 45 softmax --powers "$powers" ;;
    peers-model) peers "$1" 180 model "${cases[@]}" ${model:+--model "$model"} ;;
    peers-compile) peers "$1" 90 gemm --compile --arms torch.compile --shape "$shapes" --rows 1,8 ;;
    memcheck | racecheck | synccheck) sanitized "$1" 90 ;;
    esac
}

for step in "${STEPS[@]}"; do
    if [ ${#only[@]} -gt 0 ] && [[ " ${only[*]} " != *" $step "* ]]; then continue; fi
    if [ "$step" = model ] && [ -z "$model" ]; then continue; fi
    if [ $interrupted = 1 ]; then note "$step" failed 0 interrupted; continue; fi
    run_step "$step"
done

if [ -z "$python" ]; then
    note report absent 0 "python3"
elif timeout 60 "$python" "$HERE/gpu_report.py" . >report.log 2>&1 </dev/null; then
    note report ok 0 "$out/report.html, $out/report.json"
else
    note report failed 0 "$(last_line report)"
fi
echo
if [ ${#left_out[@]} -gt 0 ]; then echo "not offered or absent: ${left_out[*]}"; fi
if [ ${#failed[@]} -gt 0 ]; then
    echo "FAILED: ${failed[*]}"
    exit 1
fi
if [ ${#left_out[@]} -gt 0 ]; then exit 3; fi
echo "all steps are ok"
