#!/usr/bin/env python3
"""Backs up one tree as that of several hosts: what is stored, and the time of the second host's first backup.

    bench/dedup.py TREE DIR [--hosts 10] [--rounds 5] [--before PROGRAM]

DIR gets the repositories, which are removed before each run. The second host's first backup is made with content of the first one, and
without it (--dedup source), in turns; likewise with a first backup that only a host with a limit could have made, so that content is compared. With
--before, full and incremental backups of a single source are timed against that program, in turns. If restic and borg are there, they store the
same hosts, at a level of compression that is like zstd:1. Files are in the page cache after the first run, which does not count.
"""

import argparse
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import time


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree")
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--hosts", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", metavar="PROGRAM")
    parser.add_argument("--fullbore", default="fullbore")
    return parser.parse_args()


def bytes_of(place):
    return sum(file.stat().st_size for file in place.rglob("*") if file.is_file())


def mb(size):
    return f"{size / 1e6:.1f} MB"


class Bench:
    def __init__(self, given):
        self.given = given
        self.env = dict(os.environ, FULLBORE_STATE_DIR=str(given.dir / "state"), RESTIC_PASSWORD="bench", BORG_PASSPHRASE="bench",
                        BORG_BASE_DIR=str(given.dir / "borg-state"), RESTIC_CACHE_DIR=str(given.dir / "restic-cache"))
        self.count = 0

    def place(self):
        """A directory that is not there: a repository of another name each time."""
        self.count += 1
        return self.given.dir / f"repository{self.count}"

    def timed(self, words):
        """Seconds, and seconds of the processor."""
        os.sync()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        begun = time.monotonic()
        done = subprocess.run([str(word) for word in words], env=self.env, stdout=subprocess.PIPE, check=True)
        took = time.monotonic() - begun
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return took, cpu, done.stdout

    def backup(self, repository, host, *more, program=None):
        words = [program or self.given.fullbore, "backup", self.given.tree, "--to", repository, "--host", host, "--json", "--quiet"]
        took, cpu, out = self.timed(words + list(more))
        return took, cpu, json.loads(out.splitlines()[-1])

    def stored(self):
        """Bytes after each host, of all programs."""
        place = self.place()
        sizes = []
        for number in range(self.given.hosts):
            self.backup(place, f"host{number}")
            sizes.append(bytes_of(place))
        shutil.rmtree(place)
        print(f"fullbore: {mb(sizes[0])} of one host, {mb(sizes[-1])} of {len(sizes)}: {sizes[-1] / sizes[0]:.3f}")
        for name, make in (("restic", self.restic), ("borg", self.borg)):
            if shutil.which(name):
                other = make()
                print(f"{name}: {mb(other)} of {len(sizes)}; fullbore has {sizes[-1] / other:.3f} of it")

    def restic(self):
        place = self.place()
        self.timed(["restic", "init", "-q", "-r", place])
        for number in range(self.given.hosts):
            self.timed(["restic", "backup", "-q", "-r", place, "--compression", "fastest" if self.has_fastest() else "auto", "--host", f"host{number}", self.given.tree])
        size = bytes_of(place)
        shutil.rmtree(place)
        return size

    def has_fastest(self):
        version = subprocess.run(["restic", "version"], stdout=subprocess.PIPE, check=True).stdout.split()[1].decode()
        return tuple(int(part) for part in version.split(".")[:2]) >= (0, 18)

    def borg(self):
        place = self.place()
        self.timed(["borg", "init", "-e", "none", place])
        for number in range(self.given.hosts):
            self.timed(["borg", "create", "--compression", "zstd,1", f"{place}::host{number}", self.given.tree])
        size = bytes_of(place)
        shutil.rmtree(place)
        return size

    def second_host(self):
        first = self.place()
        made = self.backup(first, "host0")[2]
        mark = first / "backups" / made["id"] / "unproven"
        cases = {"stored": ("--dedup", "source"), "found": (), "found and compared": ()}
        times = {name: [] for name in cases}
        for turn in range(self.given.rounds + 1):
            for name, more in cases.items():
                if name == "found and compared":
                    mark.touch()
                took, cpu, result = self.backup(first, f"host-{turn}", *more)
                mark.unlink(missing_ok=True)
                if turn:
                    times[name].append((took, cpu))
                # The next one finds the first host's backup alone.
                self.timed([self.given.fullbore, "forget", first, result["id"], "--yes", "--prune", "--quiet"])
        shutil.rmtree(first)
        self.show("the second host's first backup", times, "stored")

    def single(self):
        programs = {"before": self.given.before, "now": self.given.fullbore}
        full = {name: [] for name in programs}
        again = {name: [] for name in programs}
        for turn in range(self.given.rounds + 1):
            for name, program in programs.items():
                place = self.place()
                for times in (full, again):
                    took, cpu, _ = self.backup(place, "host", program=program)
                    if turn:
                        times[name].append((took, cpu))
                shutil.rmtree(place)
        self.show("a single source, full", full, "before")
        self.show("a single source, again", again, "before")

    @staticmethod
    def show(title, times, to):
        print(title)
        of = [statistics.median(values) for values in zip(*times[to])]
        for name, runs in times.items():
            took, cpu = (statistics.median(values) for values in zip(*runs))
            print(f"  {name:20} {took:6.2f} s ({took / of[0]:.2f}), {cpu:6.2f} s of processors ({cpu / of[1]:.2f})")


def main():
    given = options()
    given.dir.mkdir(parents=True, exist_ok=True)
    bench = Bench(given)
    bench.stored()
    bench.second_host()
    if given.before:
        bench.single()


if __name__ == "__main__":
    main()
