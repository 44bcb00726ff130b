#!/usr/bin/env bash
# A host's script in the driver's tests. What it plays is in its home's file `part`, a word a start;
# the last one stays.
if [ "${1:-}" != supervise ]; then # as the real one becomes its supervisor
  me=${BASH_SOURCE[0]##*/}
  exec bash "${BASH_SOURCE[0]}" supervise host "--me=${me%.sh}" "$@"
fi
shift 3
cd "${BASH_SOURCE[0]%/*}/.." || exit 70
if [ "${1:-}" = --install ]; then
  echo 'ddpgen: installing it' >&2
  : >"$HOME/installed"
  [ ! -e "$HOME/offline" ] || { echo 'ddpgen: pip could not install it (PY004)' >&2; exit 69; }
  exit 0
fi
token=${1#--driven=}
report() { # CRASHED REASON: as train/launch/hosts.py does
  echo "ddpgen-end $token {\"crashed\": $1, \"reason\": \"$2\"}" >&2
}
exec 9<.
flock -s -n 9
me=${BASH_SOURCE[0]##*/}
me=${me%.sh}
printf '%s\0' "$@" >"$HOME/arguments"
pwd >"$HOME/place"
echo "$DDPGEN_LAUNCH" >>"$HOME/launches"
parts="$HOME/part"
part=$(head -n1 "$parts")
[ "$(wc -l <"$parts")" -lt 2 ] || sed -i 1d "$parts"
mkdir -p "$HOME/ddpgen/checkpoints/pair/nodes/$me"
checkpoint() {
  mkdir -p "$HOME/ddpgen/checkpoints/pair/step-00000000$1"
  echo "{\"step\": $1}" >"$HOME/ddpgen/checkpoints/pair/step-00000000$1/checkpoint.json"
}
listen() {
  echo training
  while read -r word; do
    echo "$word" >>"$HOME/words"
    case $word in
      stop)
        echo 'ddpgen: stopped at step 3; to resume: the same command' >&2
        exit 75
        ;;
      kill)
        echo 'ddpgen: killed; to resume: the same command' >&2
        report true 'killed; to resume: the same command'
        exit 1
        ;;
    esac
  done
  echo gone >>"$HOME/words"
  exit 75
}
case $part in
  done)
    printf 'out\n'
    echo 'ddpgen: done at step 7; results are here' >&2
    exit 0
    ;;
  listen) listen ;;
  stopped) # by a signal on the host itself, when its peer is there
    until [ -e "$HOME/../over" ]; do sleep 0.05; done
    echo 'ddpgen: stopped before the training began; to start it: the same command' >&2
    exit 75
    ;;
  slow-stop) # a second after its peers, and nothing was trained
    echo training
    while read -r word; do
      [ "$word" = stop ] || continue
      sleep 1
      echo 'ddpgen: stopped before the training began; to start it: the same command' >&2
      exit 75
    done
    ;;
  lonely) # ends when its peer does
    echo training
    until [ -e "$HOME/../over" ]; do sleep 0.05; done
    echo 'ddpgen: crashed: rank 1: lost a peer: Connection closed by peer' >&2
    report true 'rank 1: lost a peer: Connection closed by peer'
    exit 1
    ;;
  fail)
    seq 1 30
    echo "ddpgen: failed at step 7: $me: out of memory" >&2
    echo 'ddpgen: to resume: the same command' >&2
    report false "$me: out of memory"
    : >"$HOME/../over"
    exit 1
    ;;
  crash | crash-after-*)
    case $part in crash-after-*) checkpoint "${part##*-}" ;; esac
    echo 'ddpgen: failed: x' >&2 # the user's own, which decides nothing
    echo 'ddpgen-end 1234 {"crashed": false, "reason": "x"}' >&2
    echo 'ddpgen: crashed: rank 0: ValueError: odd' >&2
    report true 'rank 0: ValueError: odd'
    exit 1
    ;;
  die) kill -KILL $$ ;;
  busy)
    echo 'ddpgen: checkpoints/pair is in use by job pair, attempt 1f' >&2
    exit 69
    ;;
  gpu) # the preflight refuses, on all hosts alike, because of lap
    echo 'ddpgen: preflight: GPU006 on lap; nothing was started' >&2
    echo "ddpgen-end $token {\"crashed\": false, \"reason\": \"preflight: GPU006 on lap; nothing was started\", \"fault\": [\"lap\", \"GPU006: no answer\"]}" >&2
    exit 69
    ;;
  usage)
    echo 'ddpgen: --stesp: unknown option; did you mean --steps?' >&2
    exit 2
    ;;
  deaf)
    trap '' TERM
    sleep 600 9<&-
    ;;
  spill) # its secrets, in pieces
    echo "$A_TOKEN $B_TOKEN" >"$HOME/secrets"
    printf 'my %s' "${A_TOKEN%???}"
    sleep 0.1
    printf '%s and %s: all\n' "${A_TOKEN: -3}" "$B_TOKEN"
    echo 'ddpgen: done at step 7; results are here' >&2
    exit 0
    ;;
  loud)
    printf 'a\xff\xfeb\x1b[2Jc\r10%%\r20%%\nno newline at the end'
    head -c 200000 /dev/zero | tr '\0' x
    echo
    for _ in $(seq 1 20000); do echo 'a line like many others'; done
    printf 'the end'
    exit 0
    ;;
esac
