#!/usr/bin/env bash
# SkyPilot's command line for tests. What it was asked is added to sky/calls beside the directory it lies
# in; what it answers is in sky/NAME (version, queue, launch, cancel, logs), its exit code in the first line.
# shellcheck disable=SC1090,SC2129 # what it is told to do is a file of the test's
state=${0%/*}/../sky
printf 'sky' >>"$state/calls"
printf ' %q' "$@" >>"$state/calls"
printf '\n' >>"$state/calls"
name=${2:-}
[ "${1:-}" != --version ] || name=version
pwd >"$state/$name.cwd"
[ ! -e "$state/$name.then" ] || . "$state/$name.then"
[ -e "$state/$name" ] || exit 0
{
  read -r code
  cat
} <"$state/$name"
exit "$code"
