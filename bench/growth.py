#!/usr/bin/env python3
"""Prints time and memory of the verbs that look at all backups, by the number of backups.

    bench/growth.py DIR [--sources 1000] [--backups 1000 10000 100000] [--files 40] [--grow target/debug/grow]

DIR gets the repositories, which `grow` writes: real roots, and a few bytes in place of each segment. 100,000 backups take 1.6 GB. Each
repository is removed after its measurement. Each verb runs twice, the first time without what an earlier one left in the cache; `forget`
and `prune` change the repository and run once.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import time


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--sources", type=int, default=1000)
    parser.add_argument("--backups", type=int, nargs="+", default=[1000, 10000, 100000])
    parser.add_argument("--files", type=int, default=40)
    parser.add_argument("--changed-one-of", type=int, default=2)
    parser.add_argument("--grow", default="target/debug/grow")
    parser.add_argument("--fullbore", default="target/debug/fullbore")
    return parser.parse_args()


def measured(words, env):
    """Runs a command; its seconds, its peak memory in MiB, its output."""
    begun = time.monotonic()
    child = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    out = child.stdout.read().decode()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    took = time.monotonic() - begun
    if child.returncode != 0:
        sys.exit(f"{words} failed:\n{out[-2000:]}")
    return took, usage.ru_maxrss / 1024, out


class Repository:
    def __init__(self, given, backups):
        self.given = given
        self.sources = min(given.sources, backups)
        self.rounds = backups // self.sources
        self.path = given.dir / f"growth-{backups}"
        self.state = given.dir / "state"
        self.env = dict(os.environ, FULLBORE_STATE_DIR=str(self.state), XDG_CACHE_HOME=str(given.dir / "cache"))
        self.backups = self.sources * self.rounds

    def make(self):
        shutil.rmtree(self.path, ignore_errors=True)
        for old in (self.state, self.given.dir / "cache"):
            shutil.rmtree(old, ignore_errors=True)
        numbers = [self.sources, self.rounds, self.given.files, self.given.changed_one_of]
        subprocess.run([self.given.grow, self.path, *map(str, numbers)], check=True)
        # The cache takes no root that may be changed within the same tick of the clock.
        time.sleep(3)

    def run(self, name, words):
        words = [self.given.fullbore, *words]
        took, memory, out = measured(words, self.env)
        last = (out.strip().splitlines() or [""])[-1]
        print(f"{self.backups:>8,} {name:<22} {took:8.2f} s {memory:7.0f} MiB  {last[:70]}", flush=True)

    def measure(self):
        path = str(self.path)
        keep = ["--keep-last", str(max(1, self.rounds * 9 // 10))]
        twice = {
            "list --host": ["list", path, "--host", "host7"],
            "list": ["list", path],
            "stats": ["stats", path],
            "forget --dry-run": ["forget", path, *keep, "--dry-run"],
            "prune --dry-run": ["prune", path, "--dry-run"],
        }
        for name, words in twice.items():
            self.run(name, words)
            self.run(name + ", again", words)
        self.run("forget", ["forget", path, *keep])
        self.run("prune", ["prune", path])
        self.run("prune, again", ["prune", path])
        self.run("stats", ["stats", path])


def main():
    given = options()
    given.dir.mkdir(parents=True, exist_ok=True)
    for backups in given.backups:
        repository = Repository(given, backups)
        repository.make()
        repository.measure()
        shutil.rmtree(repository.path)


if __name__ == "__main__":
    main()
