#!/usr/bin/env python3
"""Times a backup to two destinations against one to each alone, in turns.

    bench/several.py TREE DIR [--rounds 5] [--s3 MB_PER_SECOND]

DIR gets the repositories, which are removed before each run: each backup is a full one. Without --s3 the two destinations are
directories; with it they are a directory and an S3 server on this machine, to which the program sends at most so many MB a second. Files are in
the page cache after the first run, which does not count.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import time

from cloud import BUCKET, KEYS, Store


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree")
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--s3", type=int, metavar="MB_PER_SECOND")
    parser.add_argument("--fullbore", default="fullbore")
    return parser.parse_args()


class In:
    """Makes directories, as Store wants them."""

    def __init__(self, place):
        self.dir = str(place)

    def fresh(self, name):
        return tempfile.mkdtemp(prefix=name, dir=self.dir)


class Bench:
    def __init__(self, given, store):
        self.given = given
        self.store = store
        self.env = dict(os.environ, FULLBORE_STATE_DIR=str(given.dir / "state"))
        self.near = [given.dir / "one", given.dir / "two"]
        self.runs = 0
        if store:
            self.env.update(KEYS, AWS_ENDPOINT_URL=store.url())

    def places(self):
        """The two destinations, both empty."""
        for near in self.near:
            shutil.rmtree(near, ignore_errors=True)
        self.runs += 1
        if self.given.s3:
            return [str(self.near[0]), f"s3://{BUCKET}/run{self.runs}"]
        return [str(near) for near in self.near]

    def seconds(self, to):
        words = [self.given.fullbore, "backup", self.given.tree, "--no-cache", "--json", "--quiet"]
        for place in to:
            words += ["--to", place]
        if self.given.s3:
            words += ["--no-encryption", "--limit-upload", f"{self.given.s3}M"]
        os.sync()
        begun = time.monotonic()
        out = subprocess.run(words, env=self.env, stdout=subprocess.PIPE, check=True).stdout
        took = time.monotonic() - begun
        ends = json.loads(out.splitlines()[-1]).get("destinations", [])
        copied = [end["copied_bytes"] for end in ends]
        return took, copied


def main():
    given = options()
    given.dir.mkdir(parents=True, exist_ok=True)
    if not given.s3:
        return compare(Bench(given, None))
    with Store(In(given.dir)) as store:
        compare(Bench(given, store))
    shutil.rmtree(store.root)


def compare(bench):
    bench.seconds(bench.places()[:1])
    table = {"first": [], "second": [], "both": []}
    copied = []
    for _ in range(bench.given.rounds):
        for name, chosen in (("first", slice(0, 1)), ("both", slice(0, 2)), ("second", slice(1, 2))):
            took, of_others = bench.seconds(bench.places()[chosen])
            table[name].append(took)
            copied += of_others
            if bench.store:
                bench.store.empty()
    for name, seconds in table.items():
        print(f"{name:7} median {statistics.median(seconds):.2f} s, {min(seconds):.2f} to {max(seconds):.2f}")
    slower = [max(first, second) for first, second in zip(table["first"], table["second"])]
    ratios = [both / alone for both, alone in zip(table["both"], slower)]
    print(f"both / slower alone: median {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}")
    print(f"copied from another one: {max(copied, default=0) / 1e6:.1f} MB at most")


if __name__ == "__main__":
    main()
