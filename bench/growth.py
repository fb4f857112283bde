#!/usr/bin/env python3
"""Prints time, memory and requests of the verbs that look at all backups, by the number of backups.

    bench/growth.py DIR [--store] [--sources 1000] [--backups 1000 10000 100000] [--files 40] [--grow target/debug/grow]

DIR gets the repositories, which `grow` writes. One has real roots that refer to many earlier backups, and a few bytes in place of each
segment: 100,000 backups take 1.6 GB. The other one has real content: each second backup of a source has all files, the other one refers
to it; 100,000 backups take 1.6 GB. Each repository is removed after its measurement. Each verb runs twice, the first time without what an
earlier one left in the cache; `forget` and `prune` change the repository and run once.

With --store the repositories are in S3: versitygw, as the tests have it (scripts/object-stores), counts the requests. Files are put into its
directory, with the digest that it would have noted, since 100,000 puts would take longer than all measurements.
"""

import argparse
import hashlib
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time

from cloud import KEYS, SERVER, free_port


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--store", action="store_true")
    parser.add_argument("--sources", type=int, default=1000)
    parser.add_argument("--backups", type=int, nargs="+", default=[1000, 10000, 100000])
    parser.add_argument("--files", type=int, default=40)
    parser.add_argument("--changed-one-of", type=int, default=2)
    parser.add_argument("--grow", default="target/debug/grow")
    parser.add_argument("--fullbore", default="target/debug/fullbore")
    return parser.parse_args()


def measured(words, env, right=(0,)):
    """Runs a command, which ends with one of the right exit codes; its seconds, its peak memory in MiB, its output."""
    begun = time.monotonic()
    child = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    out = child.stdout.read().decode()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    took = time.monotonic() - begun
    if child.returncode not in right:
        sys.exit(f"{words} failed:\n{out[-2000:]}")
    return took, usage.ru_maxrss / 1024, out


class Directory:
    """Repositories in a directory. Requests are not counted."""

    def __init__(self, given):
        self.root = given.dir / "repositories"
        (self.root / "bench").mkdir(parents=True)
        self.env = {}

    def path(self, name):
        return self.root / "bench" / name

    address = path

    def settle(self, name):
        # The cache takes no root that may be changed within the same tick of the clock.
        time.sleep(4)

    def requests(self):
        return None

    def end(self):
        shutil.rmtree(self.root)


class Store(Directory):
    """Repositories in an object store, which counts requests."""

    def __init__(self, given):
        super().__init__(given)
        self.log = given.dir / "requests"
        self.log.unlink(missing_ok=True)
        port = free_port()
        key, secret = KEYS["AWS_ACCESS_KEY_ID"], KEYS["AWS_SECRET_ACCESS_KEY"]
        words = [SERVER, "--port", f"127.0.0.1:{port}", "--access", key, "--secret", secret, "--keep-alive", "--quiet"]
        self.server = subprocess.Popen([*words, "--access-log", self.log, "posix", self.root], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.env = {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_REGION": "us-east-1"}
        time.sleep(2)

    def address(self, name):
        return f"s3://bench/{name}"

    def settle(self, name):
        for dir, _, files in os.walk(self.path(name)):
            for file in files:
                path = os.path.join(dir, file)
                with open(path, "rb") as content:
                    digest = hashlib.md5(content.read()).hexdigest()
                os.setxattr(path, "user.etag", digest.encode())
        time.sleep(4)

    def requests(self):
        with open(self.log) as log:
            return sum(1 for _ in log)

    def end(self):
        self.server.terminate()
        self.server.wait()
        super().end()


class Repository:
    """A repository with so many backups."""

    def __init__(self, given, place, backups, like=None):
        self.given, self.place, self.like = given, place, like
        self.sources = min(given.sources, backups)
        self.rounds = backups // self.sources
        self.backups = self.sources * self.rounds
        self.name = f"{'whole' if like else 'roots'}-{backups}"
        self.address = str(place.address(self.name))
        self.env = dict(os.environ, FULLBORE_STATE_DIR=str(given.dir / "state"), XDG_CACHE_HOME=str(given.dir / "cache"), **place.env)

    def __enter__(self):
        for old in ("state", "cache"):
            shutil.rmtree(self.given.dir / old, ignore_errors=True)
        numbers = [self.sources, self.rounds, self.given.files, self.given.changed_one_of]
        words = [self.given.grow, self.place.path(self.name), *map(str, numbers)]
        subprocess.run([*words, self.like] if self.like else words, check=True)
        self.place.settle(self.name)
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.place.path(self.name))

    def run(self, name, *words):
        before = self.place.requests()
        # The sources of the year that `grow` writes are late.
        right = (0, 1, 4) if words[0] == "fleet" else (0,)
        took, memory, out = measured([self.given.fullbore, *words], self.env, right)
        asked = "" if before is None else f"{self.place.requests() - before:>9,} requests"
        last = (out.strip().splitlines() or [""])[-1]
        print(f"{self.backups:>8,} {name:<24} {took:8.2f} s {memory:7.0f} MiB {asked}  {last[:60]}", flush=True)

    def measure_roots(self):
        keep = ["--keep-last", str(max(1, self.rounds * 9 // 10))]
        twice = {
            "list --host": ["list", self.address, "--host", "host7"],
            "list": ["list", self.address],
            "stats": ["stats", self.address],
            "forget --dry-run": ["forget", self.address, *keep, "--dry-run"],
            "prune --dry-run": ["prune", self.address, "--dry-run"],
        }
        for name, words in twice.items():
            self.run(name, *words)
            self.run(name + ", again", *words)
        self.run("forget", "forget", self.address, *keep)
        self.run("prune", "prune", self.address)
        self.run("prune, again", "prune", self.address)
        self.run("stats", "stats", self.address)

    def measure_whole(self, tree):
        self.run("verify", "verify", self.address)
        self.run("fleet", "fleet", self.address)
        self.run("fleet, again", "fleet", self.address)
        words = ["backup", tree, "--to", self.address, "--host", "one-more"]
        self.run("backup of a new source", *words)
        # What is as young as a backup is read again.
        time.sleep(4)
        self.run("backup without changes", *words)
        time.sleep(4)
        self.run("the next one", *words)


def make_tree(given):
    tree = given.dir / "tree"
    tree.mkdir(exist_ok=True)
    content = random.Random(1)
    for number in range(given.files):
        (tree / f"f{number}").write_bytes(content.randbytes(200))
    return str(tree)


def main():
    given = options()
    given.dir.mkdir(parents=True, exist_ok=True)
    tree, one = make_tree(given), given.dir / "one"
    env = dict(os.environ, FULLBORE_STATE_DIR=str(given.dir / "state"), XDG_CACHE_HOME=str(given.dir / "cache"))
    shutil.rmtree(one, ignore_errors=True)
    measured([given.fullbore, "backup", tree, "--to", one, "-q"], env)
    place = Store(given) if given.store else Directory(given)
    try:
        for backups in given.backups:
            with Repository(given, place, backups) as repository:
                repository.measure_roots()
            with Repository(given, place, backups, one) as repository:
                repository.measure_whole(tree)
    finally:
        place.end()
        for made in ("one", "tree", "state", "cache"):
            shutil.rmtree(given.dir / made, ignore_errors=True)


if __name__ == "__main__":
    main()
