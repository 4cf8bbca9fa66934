#!/bin/sh
# make integrations: installs each peer in its own environment and runs our adapter in it.
# Usage: environments.sh PYTHON [NAME ...]; a peer that cannot be installed is reported and the others run.
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
    if ! { "$python" -m venv "$folder" && $pip torch && $pip -e ".[train,report]" pytest hypothesis $packages; } \
      >"$log" 2>&1; then
      reason=$(grep -m 1 '^ERROR' "$log" | cut -c 1-150)
      summary="$summary\n$name: not installed: ${reason:-see $log}"
      rm -rf "$folder"
      return
    fi
  fi
  if TOOD_PEER=$name "$folder/bin/pytest" -q -rs -p no:cacheprovider $tests $options >"$log" 2>&1; then
    summary="$summary\n$name: $(tail -1 "$log")"
  else
    failed=1
    summary="$summary\n$name: FAILED: $(tail -1 "$log"); see $log"
  fi
}

for name in ${*:-pytorch-ood avalanche openood ray mlflow wandb}; do
  case $name in
    pytorch-ood) environment pytorch-ood "pytorch-ood>=0.4,<0.5 torchvision" tests/integrations/test_pytorch_ood.py ;;
    avalanche) environment avalanche "avalanche-lib>=0.6 torchvision" tests/integrations/test_avalanche.py ;;
    openood) environment openood "openood torchvision" tests/integrations/test_openood.py ;;
    ray) environment ray "ray[default]>=2.30" "tests/deploy/test_score_files.py tests/runs/test_sweep.py" "-m slow -k ray" ;;
    mlflow) environment mlflow "mlflow-skinny>=2.16" tests/integrations/test_trackers.py "-k mlflow" ;;
    wandb) environment wandb "wandb>=0.18" tests/integrations/test_trackers.py "-k wandb" ;;
    *) echo "unknown peer $name" && exit 2 ;;
  esac
done
printf '%b\n' "$summary" | sed '/^$/d'
exit $failed
