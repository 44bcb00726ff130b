#!/usr/bin/env bash
# Slurm's programs and SkyPilot's sky for tests, by the name it is called by. What it was asked is added to
# answers/calls beside the directory it lies in; what it answers is in answers/NAME (NAME: the program, of sky
# what it is asked for, of sbatch --test-only `test`, of scontrol `scontrol.JOB` where that is there), its exit
# code in the first line.
# shellcheck disable=SC1090,SC2129,SC2209 # what it is told to do is a file of the test's
state=${0%/*}/../answers
name=${0##*/}
words=$(printf ' %q' "$@")
printf '%s\n' "$name$words" >>"$state/calls" # in one piece: several may be asked at once
case "$name ${1:-}" in
  "sky --version") name=version ;;
  "sky "*) name=${2:-} ;;
  "sbatch --test-only") name=test ;;
esac
[ ! -e "$state/$name.${!#}" ] || name=$name.${!#}
pwd >"$state/$name.cwd"
[ ! -e "$state/$name.then" ] || . "$state/$name.then"
[ -e "$state/$name" ] || exit 0
{
  read -r code
  cat
} <"$state/$name"
exit "$code"
