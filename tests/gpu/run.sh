#!/usr/bin/env bash
# Builds, tests and measures on a machine with an NVIDIA GPU and no network, in three calls of less
# than nine minutes:
#
#   tests/gpu/run.sh 1          facts, build, tests
#   tests/gpu/run.sh 2          facts, build, bench: one stream, prompts, other methods
#   tests/gpu/run.sh 3          facts, build, sanitizer, bench: many streams, other sizes
#   tests/gpu/run.sh [1|2|3] [--only PART,…] [--tests EXPRESSION] [--bench WORD,…]
#                    [--wheels FOLDER] [--rehearse]
#
# Each call leaves whole results, and builds only if there is no build of this tree.
#
#   --only      some of facts, build, tests, sanitizer, bench; without a number, default all
#   --tests     an expression for `pytest -k`
#   --bench     figures whose subject and name contain one of the words: "8b", "trace", "rate 64 at"
#   --wheels    packages that this machine lacks, default .whl if there is such a folder; installed
#               next to the build, not into the system
#   --rehearse  on an emulated GPU (build/tests/cpp/_cuda_emulated.so or $SINKSTREAM_CUDA_LIBRARY),
#               with a tiny model and a few tokens. With a number, the package is built without the
#               CUDA kernels; without one, it is the one that $PYTHON finds
#
# Every part has its own limit and runs even if an earlier one failed; the exit status is 1 if any did.
# $OUT (default build/gpu, or build/gpu-1 and so on) gets gpu.json, gpu.txt and logs.tar.gz, with the logs and traces of all
# parts, after every part, so they survive a kill; bench.json grows with every figure. That is four
# files, and running.log during a part: a machine may give back few. $PYTHON selects another python3,
# $COMMIT the commit of a tree without history.
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root" || exit 2
readonly kAllOfIt=530 # seconds: such a machine may allow ten minutes per command
readonly kParts=facts,build,tests,sanitizer,bench
only= call=0 tests='' figures='' wheels='' rehearse=()
while (($#)); do
  case $1 in
    1 | 2 | 3) call=$1; shift ;;
    --only | --tests | --bench | --wheels)
      (($# >= 2)) || { echo "run.sh: $1 needs a value" >&2; exit 2; }
      case $1 in
        --only) only=$2 ;;
        --tests) tests=$2 ;;
        --bench) figures=$2 ;;
        --wheels) wheels=$(cd "$2" && pwd) || exit 2 ;;
      esac
      shift 2
      ;;
    --rehearse) rehearse=(--rehearse); shift ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "run.sh: unknown option $1; see --help" >&2; exit 2 ;;
  esac
done

case ${only:-$call} in
  0) only=$kParts ;;
  1) only=facts,build,tests ;;
  2) only=facts,build,bench ;;
  3) only=facts,build,sanitizer,bench ;;
esac
for name in ${only//,/ }; do
  [[ ,$kParts, == *,$name,* ]] || { echo "run.sh: no part is named $name; parts are $kParts" >&2; exit 2; }
done

[[ -z $wheels && -d .whl ]] && ((call || ${#rehearse[@]} == 0)) && wheels=$root/.whl

python=${PYTHON:-python3}
out=${OUT:-build/gpu}
((call)) && out=${OUT:-build/gpu-$call}
kept=$root/build/gpu-kept # reused by the next run
mkdir -p "$out" "$kept" || exit 2
out=$(cd "$out" && pwd)
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
: >"$work/parts.tsv"
logs=$work/logs
mkdir "$logs"
rm -f "$out"/{gpu.json,gpu.txt,bench.json,logs.tar.gz,running.log}
failures=0

export PYTHONUNBUFFERED=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INDEX=1
cuda=ON
if ((${#rehearse[@]})); then
  models=$work/models cuda=OFF
  ((call)) && PYTHONPATH=$kept/site:$kept/wheels${PYTHONPATH:+:$PYTHONPATH}
  export SINKSTREAM_REHEARSAL=1 PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$root"
  export SINKSTREAM_CUDA_LIBRARY="${SINKSTREAM_CUDA_LIBRARY:-$root/build/tests/cpp/_cuda_emulated.so}"
else
  models=$kept/models
  # 25 GB of models are written and read faster in memory, where there is enough.
  (($(df --output=avail -B1G /dev/shm | tail -n 1) >= 40)) && models=/dev/shm/sinkstream-models
  unset SINKSTREAM_CUDA_LIBRARY SINKSTREAM_REHEARSAL
  export PYTHONPATH="$kept/site:$kept/wheels:$root"
  [[ -d /usr/local/cuda/bin ]] && export PATH="$PATH:/usr/local/cuda/bin"
fi

# record NAME STATUS EXIT_CODE SECONDS: records the result of a part.
record() {
  printf '%s\t%s\t%s\t%s\n' "$@" >>"$work/parts.tsv"
  tar -czf "$out/logs.tar.gz" -C "$work" logs
  "$python" -m tests.gpu.summary "$work" "$out" || failures=$((failures + 1))
  echo "$1: $2, $4 s"
}

# part NAME LIMIT COMMAND…: runs a part with its output in a log, for at most LIMIT seconds and the
# remaining time. The log has NAME up to its hyphen. A part that fails prints the end of its log.
part() {
  local name=$1 limit=$2 code status=ok began=$SECONDS log=$out/running.log
  shift 2
  local left=$((kAllOfIt - SECONDS))
  if ((left < 10)); then
    failures=$((failures + 1))
    record "$name" 'not started' 0 0
    return 1
  fi
  timeout --kill-after=5 "$((limit < left ? limit : left))" "$@" >"$log" 2>&1
  code=$?
  if ((code == 124 || code == 137)); then status='out of time'; elif ((code)); then status=failed; fi
  if ((code)); then
    failures=$((failures + 1))
    tail -n 30 "$log"
  fi
  cat "$log" >>"$logs/${name%%-*}.log"
  rm "$log"
  record "$name" "$status" "$code" "$((SECONDS - began))"
  return "$code"
}

is_asked() { [[ ,$only, == *,$1,* ]]; }

if [[ -n $wheels ]]; then
  for wheel in "$wheels"/*.whl; do # one by one: one that does not fit must not keep out the others
    "$python" -m pip install --quiet --no-deps --upgrade --target "$kept/wheels" "$wheel" ||
      failures=$((failures + 1))
  done
fi

if is_asked facts; then
  part facts 40 "$python" -m tests.gpu.facts "$work/facts.json" "${rehearse[@]}"
fi

# A hash of everything that the package is built from.
tree_of_package() {
  find csrc cmake python CMakeLists.txt pyproject.toml -type f -not -name '*.pyc' -print0 |
    LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum
}

build() {
  local tree
  tree="$(tree_of_package) CUDA=$cuda"
  if [[ $(cat "$kept/tree" 2>/dev/null) == "$tree" ]]; then
    echo 'kept from the last call'
    return
  fi
  rm -rf "$kept/site" "$kept/tree" # nothing of another tree may be tested
  local jobs # nproc would return OMP_NUM_THREADS, which is often 1 on such machines
  jobs=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
  CMAKE_BUILD_PARALLEL_LEVEL=$jobs "$python" -m pip install --verbose --no-build-isolation \
    --no-deps --upgrade --target "$kept/site" --config-settings="build-dir=$kept/build" \
    "--config-settings=cmake.define.SINKSTREAM_CUDA=$cuda" . &&
    ls -l "$kept"/site/sinkstream/_c*.so &&
    { [[ $cuda == OFF ]] || [[ -e $kept/site/sinkstream/_cuda.so ]]; } &&
    echo "$tree" >"$kept/tree"
}
if is_asked build && ((${#rehearse[@]} == 0 || call)); then
  export -f build tree_of_package
  export python kept cuda
  part build 270 bash -c build
fi

if is_asked tests; then
  part tests 250 "$python" -m pytest -v -ra --durations=8 --junitxml="$work/tests.xml" \
    ${tests:+-k "$tests"} tests/gpu
fi

# A finding is exit code 9.
if is_asked sanitizer; then
  sanitized=("$python" -m tests.gpu.sanitized "$models")
  part sanitizer-models 30 "${sanitized[@]}" --write
  if ((${#rehearse[@]})); then
    part sanitizer 60 "${sanitized[@]}"
  elif command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck initcheck; do
      part "sanitizer-$tool" 60 compute-sanitizer --tool "$tool" --error-exitcode 9 "${sanitized[@]}"
    done
  else
    echo 'compute-sanitizer is not on PATH' >"$logs/sanitizer.log"
    record sanitizer 'not installed' 0 0
  fi
fi

if is_asked bench; then
  left=$((kAllOfIt - SECONDS))
  part bench "$left" "$python" -m tests.gpu.bench "$out/bench.json" --models "$models" \
    --traces "$logs" --call "$call" --only "$figures" --limit-s "$((left > 60 ? left - 15 : 15))" "${rehearse[@]}"
fi

cat "$out/gpu.txt"
echo "written to $out, after $SECONDS s"
((failures == 0))
