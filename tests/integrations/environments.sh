#!/bin/sh
# make integrations: installs each peer in its own environment and runs our adapter in it.
# Usage: environments.sh PYTHON [NAME ...]; a peer that cannot be installed, or fails, does not keep the others from running.
# The environments are in build/integrations, or in the folder that ENVIRONMENTS names.
set -u
python=$1
shift
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root" || exit 1
environments=${ENVIRONMENTS:-build/integrations}
mkdir -p "$environments" || exit 1
summary=""
failed=0

environment() { # NAME PACKAGES TESTS [PYTEST OPTIONS]
  name=$1 packages=$2 tests=$3 options=${4:-}
  folder=$environments/$name log=$environments/$name.log
  if [ ! -x "$folder/bin/pytest" ]; then
    pip="$folder/bin/pip --disable-pip-version-check --quiet install -c constraints.txt"
    if ! { "$python" -m venv "$folder" && $pip torch && $pip $packages pytest hypothesis; } >"$log" 2>&1; then
      reason=$(grep -m 1 '^ERROR' "$log" | cut -c 1-150)
      summary="$summary\n$name: NOT INSTALLED: ${reason:-see $log}"
      failed=1
      rm -rf "$folder"
      return
    fi
  fi
  if "$folder/bin/pytest" -q -rs -p no:cacheprovider $tests $options >"$log" 2>&1; then
    summary="$summary\n$name: $(tail -1 "$log")"
  else
    failed=1
    summary="$summary\n$name: FAILED: $(tail -1 "$log"); see $log"
  fi
}

for name in ${*:-pytorch-ood avalanche openood ray mlflow wandb}; do
  extras="-e .[train,report,$name]"
  case $name in
    pytorch-ood) environment $name "$extras torchvision" tests/integrations/test_pytorch_ood.py ;;
    avalanche) environment $name "$extras torchvision" tests/integrations/test_avalanche.py ;;
    openood) # not on PyPI, where somebody else could take its name
      environment $name "-e .[train,report] torchvision git+https://github.com/Jingkang50/OpenOOD" \
        tests/integrations/test_openood.py ;;
    ray) environment $name "$extras" "tests/deploy/test_score_files.py tests/runs/test_sweep.py" "-m slow -k ray" ;;
    mlflow | wandb) environment $name "$extras" tests/integrations/test_trackers.py "-k $name" ;;
    *) echo "unknown peer $name" && exit 2 ;;
  esac
done
printf '%b\n' "$summary" | sed '/^$/d'
exit $failed
