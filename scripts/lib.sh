# What both scripts need: programs from Debian, and a cargo that is new enough. Sourced, not run.
# shellcheck shell=bash

cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PATH:$HOME/.cargo/bin"

say() { printf '\n== %s\n' "$*" >&2; }

fail() {
    printf 'error: %s\n' "$1" >&2
    [ $# -lt 2 ] || printf 'hint:  %s\n' "$2" >&2
    exit 1
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        fail "cannot install packages as this user" "install $missing as root, and run this again"
    fi
}

# Install the Debian packages that are not there. Says nothing if all are.
need() {
    missing=
    local package
    for package in "$@"; do
        case "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || :)" in
            installed) ;;
            *) missing="$missing $package" ;;
        esac
    done
    [ -n "$missing" ] || return 0
    command -v apt-get >/dev/null || fail "cannot install$missing: there is no apt-get" "install them, and run this again"
    say "installing$missing"
    # Scripts that run beside each other wait for each other's apt-get, and one of them asks for the lists.
    local apt="env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=900"
    # shellcheck disable=SC2086  # lists of words
    [ -n "${apt_lists_are_new:-}" ] || as_root $apt update >&2
    export apt_lists_are_new=yes
    # shellcheck disable=SC2086
    as_root $apt install -y --no-install-recommends $missing >&2
}

# Debian's PostgreSQL, without the server that the package would start.
need_postgres() {
    if [ ! -e /usr/share/postgresql-common ] && [ ! -e /etc/postgresql-common ]; then
        missing="no PostgreSQL server, but make /etc/postgresql-common"
        as_root mkdir -p /etc/postgresql-common/createcluster.d
        echo 'create_main_cluster = false' | as_root tee /etc/postgresql-common/createcluster.d/fullbore.conf >/dev/null
    fi
    need postgresql util-linux
}

# Run as the user that servers run as: they refuse root.
as_postgres() {
    if [ "$(id -u)" = 0 ]; then
        (cd / && setpriv --reuid=postgres --regid=postgres --clear-groups "$@")
    else
        "$@"
    fi
}

# Is version $1 at least version $2?
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

candidate() { apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: *\([0-9.]*\).*/\1/p'; }

# A C compiler and a cargo of at least the version that Cargo.toml asks for.
need_cargo() {
    command -v cc >/dev/null || need build-essential
    # cargo, rustup and curl download over HTTPS; a minimal Debian knows no certificate authority.
    need ca-certificates
    local wanted have
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    if command -v cargo >/dev/null; then
        have=$(cargo --version | cut -d ' ' -f 2)
        at_least "$have" "$wanted" || fail "cannot build with cargo $have: $wanted is needed" \
            "\`rustup update\`, or remove Debian's cargo and run this again: it then installs a newer one"
        return
    fi
    # Debian 12 and 13 have older ones; 13 has rustup.
    if have=$(candidate cargo) && [ -n "$have" ] && at_least "$have" "$wanted"; then
        need cargo
    elif have=$(candidate rustup) && [ -n "$have" ]; then
        need rustup
        # The toolchain first: --component takes all words that follow.
        rustup toolchain install stable --profile minimal --component clippy,rustfmt
        rustup default stable
    else
        need curl
        say "installing Rust for this user with rustup"
        curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |
            sh -s -- -y --no-modify-path --profile minimal --component clippy,rustfmt >&2 ||
            fail "could not install cargo" "install Rust $wanted or newer, see https://rustup.rs, and run this again"
    fi
}

# The program, optimized; or the one that $FULLBORE names.
build() {
    if [ -n "${FULLBORE:-}" ]; then
        fullbore=$(realpath "$FULLBORE")
        return
    fi
    say "building"
    cargo build --release --locked
    fullbore=$(realpath "${CARGO_TARGET_DIR:-target}/release/fullbore")
}
