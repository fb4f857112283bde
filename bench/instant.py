#!/usr/bin/env python3
"""Times an instant restore of a cluster against a plain one: to the server, to the first row of a table, to all.

    bench/instant.py REPO DIR --query 'select count(*) from cold' [--socket DIR] [--bindir DIR]

As root, on ext4, xfs or btrfs. DIR gets both restores, one after the other, and must belong to the user of servers. The table of the
query should be one that recovery does not read.
"""

import argparse
import json
import pathlib
import subprocess
import time


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repo")
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--query", required=True)
    parser.add_argument("--fullbore", default="fullbore")
    parser.add_argument("--bindir", type=pathlib.Path, default=pathlib.Path("/usr/lib/postgresql/15/bin"))
    return parser.parse_args()


def as_postgres(*words):
    return subprocess.run(["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *map(str, words)], check=True, capture_output=True, text=True)


def main():
    asked = options()
    asked.dir = asked.dir.resolve()
    plain, instant = asked.dir / "plain", asked.dir / "instant"
    begun = time.monotonic()
    subprocess.run([asked.fullbore, "restore", asked.repo, "--to", plain, "--quiet"], check=True)
    plain_seconds = time.monotonic() - begun
    subprocess.run(["rm", "-r", plain], check=True)

    begun = time.monotonic()
    words = ["restore", asked.repo, "--instant", "--start", "--bindir", asked.bindir, "--to", instant, "--json"]
    words += ["--set", f"unix_socket_directories={asked.dir}", "--set", "port=5877"]
    served = json.loads(subprocess.run([asked.fullbore, *map(str, words)], check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    answer = as_postgres(asked.bindir / "psql", "-h", asked.dir, "-p", "5877", "-U", "postgres", "-Atqc", asked.query, "postgres")
    first_seconds = time.monotonic() - begun
    state = asked.dir / ".instant.fullbore-instant"
    while state.exists():
        time.sleep(0.02)
    whole_seconds = time.monotonic() - begun
    as_postgres(asked.bindir / "pg_ctl", "-D", instant, "-s", "-m", "fast", "stop")
    print(f"answer         {answer.stdout.strip()}")
    print(f"plain restore  {plain_seconds:.2f} s")
    print(f"served         {served['served_seconds']:.2f} s")
    print(f"accepting      {served['accepting_seconds']:.2f} s")
    print(f"first query    {first_seconds:.2f} s")
    print(f"all            {whole_seconds:.2f} s, {whole_seconds / plain_seconds:.2f} of the plain restore")


if __name__ == "__main__":
    main()
