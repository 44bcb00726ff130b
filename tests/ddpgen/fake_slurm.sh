#!/usr/bin/env bash
# sbatch, squeue, sacct, scontrol and scancel for tests, by the name it is called by. What it was asked
# is added to slurm/calls beside the directory it lies in; what it answers is in slurm/NAME (or, for an
# sbatch with --test-only, slurm/test), its exit code in the first line.
# shellcheck disable=SC1090,SC2129,SC2209 # what it is told to do is a file of the test's
state=${0%/*}/../slurm
name=${0##*/}
printf '%s' "$name" >>"$state/calls"
printf ' %q' "$@" >>"$state/calls"
printf '\n' >>"$state/calls"
pwd >"$state/$name.cwd"
[ "${1:-}" != --test-only ] || name=test
[ ! -e "$state/$name.then" ] || . "$state/$name.then"
[ -e "$state/$name" ] || exit 0
{
  read -r code
  cat
} <"$state/$name"
exit "$code"
