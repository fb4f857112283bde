#!/bin/sh
# Installs from Debian the programs the benchmarks compare with or measure by.
# What is there already is left alone.
set -eu

packages="zstd tar lz4 restic borgbackup rdiff strace pgbackrest rsync postgresql libarchive-tools age"

missing=
for package in $packages; do
    case "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || :)" in
        installed) ;;
        *) missing="$missing $package" ;;
    esac
done
[ -n "$missing" ] || exit 0

export DEBIAN_FRONTEND=noninteractive
apt-get update -q
# shellcheck disable=SC2086  # a list of words
apt-get install -y -q --no-install-recommends $missing
