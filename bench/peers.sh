#!/bin/sh
# Installs from Debian the programs the benchmarks compare with or measure by; into the directory that is given, a
# pgBackRest that knows blocks. What is there already is left alone.
set -eu
backrest=$1/pgbackrest

packages="zstd tar lz4 restic borgbackup rdiff strace pgbackrest rsync postgresql libarchive-tools age"

missing=
for package in $packages; do
    case "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || :)" in
        installed) ;;
        *) missing="$missing $package" ;;
    esac
done
if [ -n "$missing" ]; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q
    # shellcheck disable=SC2086  # a list of words
    apt-get install -y -q --no-install-recommends $missing
fi
[ ! -x "$backrest/pgbackrest" ] || exit 0

# Debian 12 has 2.45, which stores a changed file as a whole. That of Debian 13 runs beside it, with its own libraries.
rm -rf "$backrest"
mkdir -p "$backrest/lists/partial" "$backrest/packages"
cd "$backrest/packages"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main" >../sources.list
set -- -q -o Dir::Etc::sourcelist="$backrest/sources.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::State::lists="$backrest/lists" -o APT::Sandbox::User=root
apt-get "$@" update
apt-get "$@" download pgbackrest libc6 libgcc-s1 liblz4-1 libpq5 libssh2-1t64 libssl3t64 libxml2 libzstd1 zlib1g libbz2-1.0 \
    libldap2 libkrb5-3 libgssapi-krb5-2 libk5crypto3 libkrb5support0 libkeyutils1 libsasl2-2 liblzma5 libcom-err2
for package in *.deb; do dpkg -x "$package" "$backrest/root"; done
cat >"$backrest/pgbackrest" <<'END'
#!/bin/sh
root=$(dirname "$0")/root
export PGBACKREST_CMD="$0"
exec "$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$root/usr/lib/x86_64-linux-gnu:/usr/lib/x86_64-linux-gnu" \
    "$root/usr/bin/pgbackrest" "$@"
END
chmod +x "$backrest/pgbackrest"
rm -rf "$backrest/lists" "$backrest/packages"
