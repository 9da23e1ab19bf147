# Finds or makes the environment that hyper_pp's scripts run in. To be sourced, from bash:
#
#     source scripts/environment.sh
#
# Afterwards HYPER_PP_PYTHON names the interpreter, its folder leads PATH, and this clone leads PYTHONPATH. Nothing of
# the clone is installed, so all clones share one environment: ${HYPER_PP_CACHE:-~/.cache/hyper_pp}/venv-<key>, where
# the key stands for scripts/constraints.txt and the Python version. Settings:
#
#     PYTHON=/path/to/python3.11    build with this Python instead of searching for one
#     HYPER_PP_PYTHON=/path/to/python    use this interpreter and what it has installed as it is
#     HYPER_PP_CACHE=/some/folder    where environments are kept
#     HYPER_PP_LAYERS="base torch npu"    what is wanted: MindSpore and the test tools (the default), torch, torch-npu

HYPER_PP_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

_hyper_pp_say() { echo "[environment] $*" >&2; }

# Prints "3.11" for an interpreter that runs and that the project supports; fails for any other.
_hyper_pp_minor() {
  "$1" -c 'import sys
if not (3, 10) <= sys.version_info[:2] <= (3, 12) or sys.implementation.name != "cpython": sys.exit(1)
print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

# Prints the interpreters to try, best first, one a line.
_hyper_pp_candidates() {
  if [ -n "${PYTHON:-}" ]; then command -v "$PYTHON" || echo "$PYTHON"; return; fi
  local name
  # 3.11 first: the version that continuous integration runs.
  for name in python3.11 python3.12 python3.10 python3; do type -ap "$name"; done
  ls -d "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[012].*/bin/python "$HOME"/.local/share/uv/python/cpython-3.1[012].*/bin/python3 2>/dev/null
}

# Says the one command that installs a system package; a machine that never fetched package lists does that first.
_hyper_pp_say_apt() {
  local sudo=""
  [ "$(id -u)" = 0 ] || sudo="sudo "
  local command="${sudo}apt-get install -y $1"
  apt-cache show "$1" >/dev/null 2>&1 || command="${sudo}apt-get update && $command"
  _hyper_pp_say "Run this one command, then try again:"
  _hyper_pp_say "    $command"
}

# Says what to install where no interpreter fits.
_hyper_pp_need_python() {
  if [ -n "${PYTHON:-}" ]; then
    _hyper_pp_say "PYTHON must name a Python 3.10, 3.11 or 3.12 (got $PYTHON: $("$PYTHON" --version 2>&1 | head -n 1))."
    return
  fi
  _hyper_pp_say "Python 3.10, 3.11 or 3.12 is needed (found: $(python3 --version 2>/dev/null || echo 'no python3'))."
  local minor
  if command -v apt-cache >/dev/null; then
    for minor in 3.11 3.12 3.10; do
      if apt-cache show "python$minor-venv" >/dev/null 2>&1 || _hyper_pp_distribution_has "$minor"; then
        _hyper_pp_say_apt "python$minor-venv"
        return
      fi
    done
  fi
  _hyper_pp_say "This system's packages have none; \`uv python install 3.11\` or \`pyenv install 3.11\` brings one,"
  _hyper_pp_say "which is found by itself. Any other place: PYTHON=/path/to/python3.11 in front of the command."
}

# Package lists may never have been fetched, so the release is asked as well.
_hyper_pp_distribution_has() {
  local VERSION_CODENAME=""
  [ -r /etc/os-release ] && . /etc/os-release
  case "$1-$VERSION_CODENAME" in 3.11-bookworm|3.10-jammy|3.12-noble) return 0 ;; esac
  return 1
}

# pip in the environment being made: patient with slow networks, deaf to settings that would install elsewhere.
_hyper_pp_pip() {
  local try
  local -a quiet=()
  [ -t 2 ] || quiet=(--quiet --progress-bar off)
  for try in 1 2 3; do
    PIP_USER=0 PIP_REQUIRE_VIRTUALENV=0 PYTHONPATH= PIP_DEFAULT_TIMEOUT="${PIP_DEFAULT_TIMEOUT:-60}" \
      "$1/bin/python" -m pip install "${quiet[@]}" --disable-pip-version-check --retries 10 \
      -c "$HYPER_PP_ROOT/scripts/constraints.txt" "${@:2}" >&2 && return
    [ "$try" = 3 ] || { _hyper_pp_say "pip failed; trying again ($((try + 1)) of 3)"; sleep $((try * 5)); }
  done
  _hyper_pp_say "pip could not install ${*:2}; its message is above. What is there already is kept for the next try."
  return 1
}

# Where PyTorch keeps its CPU builds; the ordinary ones for x86-64 bring several GB of CUDA along.
HYPER_PP_TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu

# Asks first because pip spends minutes on an index that does not answer.
_hyper_pp_reaches() {
  "$1/bin/python" -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1] + "/torch/", timeout=5)' "$2" 2>/dev/null
}

# Prints the names of one group of constraints.txt: "base" is above the line "# torch", the others below their own.
_hyper_pp_packages() {
  awk -v want="$1" 'BEGIN { group = "base" } /^# [a-z]+$/ { group = $2 }
    /^[A-Za-z]/ && group == want { sub(/[=<>].*/, ""); print }' "$HYPER_PP_ROOT/scripts/constraints.txt"
}

# Says what is missing from the system where MindSpore is installed but does not load.
_hyper_pp_check_mindspore() {
  local error
  error="$(cd / && "$1/bin/python" -c 'import mindspore' 2>&1)" && return
  if [[ "$error" == *libgomp.so.1* ]]; then
    _hyper_pp_say "MindSpore needs the system library libgomp."
    _hyper_pp_say_apt libgomp1
  else
    _hyper_pp_say "MindSpore is installed but does not load: $(tail -n 1 <<<"$error")"
  fi
  return 1
}

# Brings environment $1 (Python $2, interpreter $3) to the layers wanted. A layer is complete when its stamp is there,
# so an interrupted run leaves nothing that a later one would trust. Returns 3 where the interpreter can't make one.
_hyper_pp_make() {
  local venv="$1" minor="$2" python="$3" layer started=$SECONDS
  for layer in "${@:4}"; do
    [ -e "$venv/complete-$layer" ] && continue
    if [ "$layer" = base ]; then
      local free_mb
      free_mb="$(df -Pm "$(dirname "$venv")" | awk 'NR == 2 { print $4 }')"
      if [ "$free_mb" -lt 4500 ]; then
        _hyper_pp_say "4500 MB of free disk space are needed in $(dirname "$venv") (got $free_mb MB);" \
          "HYPER_PP_CACHE=/another/folder puts the environment elsewhere."
        return 1
      fi
      rm -rf "$venv"
      PYTHONPATH= "$python" -m venv "$venv" >/dev/null 2>&1 && "$venv/bin/python" -m pip --version >/dev/null 2>&1 \
        || { rm -rf "$venv"; return 3; }
      touch "$venv/made-by-hyper_pp"
      _hyper_pp_say "installing MindSpore and the test tools for Python $minor into $venv"
      _hyper_pp_say "about 3 GB on disk, usually 2 to 4 minutes; this happens once, later runs and other clones reuse it"
    else
      local size="1 GB"
      [ "$layer" = torch ] || size="200 MB"
      _hyper_pp_say "adding $layer: about $size on disk, usually 1 to 2 minutes; this happens once"
    fi
    local -a packages
    mapfile -t packages < <(_hyper_pp_packages "$layer")
    local -a index=()
    if [ "$layer" = torch ] && _hyper_pp_reaches "$venv" "$HYPER_PP_TORCH_CPU_INDEX"; then
      index=(--extra-index-url "$HYPER_PP_TORCH_CPU_INDEX")
    fi
    _hyper_pp_pip "$venv" "${index[@]}" "${packages[@]}" || return 1
    [ "$layer" != base ] || _hyper_pp_check_mindspore "$venv" || return 1
    touch "$venv/complete-$layer"
    _hyper_pp_say "$layer is ready after $((SECONDS - started)) s"
  done
}

# Runs "$@" while no other clone makes or extends an environment in the same cache.
_hyper_pp_locked() {
  if command -v flock >/dev/null; then
    (
      flock -n 9 || { _hyper_pp_say "another run is making the environment; waiting for it"; flock 9; }
      "$@" 9>&-
    ) 9>"$HYPER_PP_CACHE_DIR/lock"
    return
  fi
  # Without flock (BusyBox-free minimal systems): a folder that holds its owner's process id.
  local owner
  until mkdir "$HYPER_PP_CACHE_DIR/lock.d" 2>/dev/null; do
    owner="$(cat "$HYPER_PP_CACHE_DIR/lock.d/pid" 2>/dev/null)"
    if [ -n "$owner" ] && ! kill -0 "$owner" 2>/dev/null; then rm -rf "$HYPER_PP_CACHE_DIR/lock.d"; else sleep 2; fi
  done
  echo $$ >"$HYPER_PP_CACHE_DIR/lock.d/pid"
  local status=0
  "$@" || status=$?
  rm -rf "$HYPER_PP_CACHE_DIR/lock.d"
  return "$status"
}

_hyper_pp_use() {
  export HYPER_PP_ROOT HYPER_PP_PYTHON="$1"
  case "$PATH" in "$(dirname "$1"):"*) ;; *) export PATH="$(dirname "$1"):$PATH" ;; esac
  case ":${PYTHONPATH:-}:" in
    ":$HYPER_PP_ROOT:"*) ;;
    *) export PYTHONPATH="$HYPER_PP_ROOT${PYTHONPATH:+:$PYTHONPATH}" ;;
  esac
}

_hyper_pp_environment() {
  local -a layers
  read -ra layers <<<"${HYPER_PP_LAYERS:-base}"
  # An interpreter that an earlier run of this file chose is chosen again below: more layers may be wanted now.
  if [ -n "${HYPER_PP_PYTHON:-}" ] && [ ! -e "$(dirname "$HYPER_PP_PYTHON")/../made-by-hyper_pp" ]; then
    if ! _hyper_pp_minor "$HYPER_PP_PYTHON" >/dev/null; then
      _hyper_pp_say "HYPER_PP_PYTHON must name a Python 3.10, 3.11 or 3.12 (got $HYPER_PP_PYTHON)"
      return 1
    fi
    _hyper_pp_use "$HYPER_PP_PYTHON"
    return
  fi

  HYPER_PP_CACHE_DIR="${HYPER_PP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hyper_pp}"
  if ! mkdir -p "$HYPER_PP_CACHE_DIR" 2>/dev/null || [ ! -w "$HYPER_PP_CACHE_DIR" ]; then
    _hyper_pp_say "$HYPER_PP_CACHE_DIR can't be written; HYPER_PP_CACHE=/another/folder puts the environment elsewhere."
    return 1
  fi
  HYPER_PP_CACHE_DIR="$(cd "$HYPER_PP_CACHE_DIR" && pwd)"
  local pins python minor venv layer without_venv="" seen="" status
  pins="$(grep -v -e '^#' -e '^$' "$HYPER_PP_ROOT/scripts/constraints.txt" | sha256sum | cut -c 1-10)"

  # An environment that is there already wins over a better interpreter that would have to make one.
  local -a pythons=() minors=()
  while read -r python; do
    minor="$(_hyper_pp_minor "$python")" || continue
    pythons+=("$python") minors+=("$minor")
  done < <(_hyper_pp_candidates)
  local index
  for index in "${!pythons[@]}"; do
    venv="$HYPER_PP_CACHE_DIR/venv-$pins-py${minors[index]}"
    "$venv/bin/python" -c '' 2>/dev/null || continue
    for layer in "${layers[@]}"; do [ -e "$venv/complete-$layer" ] || continue 2; done
    _hyper_pp_use "$venv/bin/python"
    return
  done

  for index in "${!pythons[@]}"; do
    python="${pythons[index]}" minor="${minors[index]}"
    venv="$HYPER_PP_CACHE_DIR/venv-$pins-py$minor"
    status=0
    _hyper_pp_locked _hyper_pp_make "$venv" "$minor" "$python" "${layers[@]}" || status=$?
    case "$status" in
      0) _hyper_pp_use "$venv/bin/python"; return ;;
      3) without_venv="${without_venv:-$minor}" ;;
      *) return 1 ;;
    esac
  done
  if [ -z "$without_venv" ]; then
    _hyper_pp_need_python
  else
    _hyper_pp_say "Python $without_venv is there, but its venv module is not complete."
    _hyper_pp_say_apt "python$without_venv-venv"
  fi
  return 1
}

_hyper_pp_environment
