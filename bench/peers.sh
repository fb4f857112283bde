#!/bin/sh
# Installs from Debian the programs the benchmarks measure by, and into the directory that is given the newest programs
# they compare with: those of Debian unstable, with their own libraries beside those of this system. What is there already
# is left alone.
set -eu
peers=$1/peers
root=$peers/root

packages="zstd tar lz4 rdiff strace rsync postgresql libarchive-tools age patchelf"
newest="restic borgbackup pgbackrest rsync postgresql-18"

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
[ ! -x "$peers/bin/restic" ] || exit 0

rm -rf "$peers"
mkdir -p "$peers/lists/partial" "$peers/packages" "$root" "$peers/bin"
cd "$peers/packages"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian sid main" >../sources.list
set -- -q -o Dir::Etc::sourcelist="$peers/sources.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::State::lists="$peers/lists" -o Dir::State::status=/dev/null -o APT::Sandbox::User=root
apt-get "$@" update
# As if nothing was installed, so that the libraries come too.
# shellcheck disable=SC2046,SC2086  # lists of words
apt-get "$@" download $(apt-get "$@" -s install --no-install-recommends $newest | sed -n 's/^Inst \([^ ]*\).*/\1/p')
# Unpacked into the merged /usr that they expect.
mkdir -p "$root/usr/bin" "$root/usr/lib" "$root/usr/lib64" "$root/usr/sbin"
for name in bin lib lib64 sbin; do ln -s "usr/$name" "$root/$name"; done
for package in *.deb; do dpkg-deb --fsys-tarfile "$package" | tar -xf - -C "$root" --keep-directory-symlink; done

# They take the loader and the libraries that came with them.
postgres=$root/usr/lib/postgresql/18/bin
for program in "$root/usr/bin/restic" "$root/usr/bin/pgbackrest" "$root/usr/bin/rsync" "$root/usr/bin/python3" "$postgres"/*; do
    program=$(realpath "$program")
    patchelf --print-interpreter "$program" >/dev/null 2>&1 || continue
    patchelf --set-interpreter "$root/usr/lib64/ld-linux-x86-64.so.2" --force-rpath --set-rpath \
        "$root/usr/lib/x86_64-linux-gnu" "$program"
done
for program in restic pgbackrest rsync; do ln -s "$root/usr/bin/$program" "$peers/bin/$program"; done
cat >"$peers/bin/borg" <<END_OF_BORG
#!/bin/sh
PYTHONHOME=$root/usr exec $root/usr/bin/python3 $root/usr/bin/borg "\$@"
END_OF_BORG
chmod +x "$peers/bin/borg"
rm -rf "$peers/lists" "$peers/packages"
