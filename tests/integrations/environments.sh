#!/bin/sh
# make integrations: installs each peer in an environment of its own under build/integrations and runs our adapter in it.
# Usage: environments.sh PYTHON [NAME ...]; a peer that cannot be installed is reported and the others run.
set -u
python=$1
shift
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root" || exit 1
summary=""
failed=0

environment() { # NAME PACKAGES TESTS [PYTEST OPTIONS]
  name=$1 packages=$2 tests=$3 options=${4:-}
  folder=build/integrations/$name
  mkdir -p build/integrations
  if [ ! -x "$folder/bin/pytest" ]; then
    "$python" -m venv "$folder" &&
      "$folder/bin/pip" --disable-pip-version-check --quiet install -c constraints.txt torch &&
      "$folder/bin/pip" --disable-pip-version-check --quiet install -c constraints.txt -e ".[train,report]" pytest hypothesis \
        $packages >"build/integrations/$name.log" 2>&1
    if [ $? -ne 0 ]; then
      reason=$(grep -m 1 '^ERROR' "build/integrations/$name.log" | cut -c 1-150)
      summary="$summary\n$name: not installed: ${reason:-see build/integrations/$name.log}"
      rm -rf "$folder"
      return
    fi
  fi
  if TOOD_PEER=$name "$folder/bin/pytest" -q -rs -p no:cacheprovider $tests $options >"build/integrations/$name.log" 2>&1; then
    summary="$summary\n$name: $(tail -1 "build/integrations/$name.log")"
  else
    failed=1
    summary="$summary\n$name: FAILED: $(tail -1 "build/integrations/$name.log"); see build/integrations/$name.log"
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
