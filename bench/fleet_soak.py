#!/usr/bin/env python3
"""Many hosts back up to two encrypted repositories at once, and many of them are killed; forgets, prunes, syncs and rotations of the keys run beside.

    bench/fleet_soak.py PROGRAM [--hosts 200] [--nights 5] [--kills 0.3] [--jobs 4] [--restores 40] [--seed 1]
                                [--shared]

Each host has a put key for each repository and sends each backup to both. At the end nothing that was acknowledged may be lost: each such
backup is listed, `verify --data` finds no damage in either repository, and sampled backups restore to what the tree was. Exit code 1 if not.

With `--shared` each host has a key that reads the repositories, half of its files are those of other hosts, and `--dedup repository` stores
them once: backups of one host refer to what others stored, while forgets and prunes run. As a backup to several repositories stores all
content, each goes to one of the two then, and `sync` brings some to the other one.
"""

import argparse
import collections
import hashlib
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

REPOSITORIES = ("near", "far")


class Soak:
    def __init__(self, options, work):
        self.options = options
        self.work = work
        self.program = str(pathlib.Path(options.program).resolve())
        self.lock = threading.Lock()
        self.kept = {name: {} for name in REPOSITORIES}  # ids that were acknowledged, and what the tree was
        self.counts = collections.Counter()
        self.failures = []
        self.problems = []
        self.seconds = 0.3  # of a backup, about
        self.is_over = threading.Event()

    def run(self, *words, key="me", state="me", limit=600):
        """Runs the program; returns exit code, standard output and the last lines of standard error."""
        with subprocess.Popen(
            [self.program, *map(str, words)],
            env=self.environment(key, state),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            out, err = process.communicate(timeout=limit)
        return process.returncode, out, err[-600:]

    def environment(self, key, state):
        own = {"FULLBORE_STATE_DIR": str(self.work / "state" / state)}
        if key:
            own["FULLBORE_KEY_FILE"] = str(self.work / f"{key}.key")
        return {**os.environ, **own}

    def must(self, *words, **options):
        code, out, err = self.run(*words, **options)
        if code:
            raise SystemExit(f"{words}: {code}: {err}")
        return out

    def place(self, name):
        return self.work / name

    def host(self, number):
        return f"host{number:04}"

    def tree(self, number):
        return self.work / "trees" / self.host(number)

    def prepare(self):
        recipient = self.new_key("me")
        for name in REPOSITORIES:
            self.must("init", self.place(name), "--encrypt-to", recipient, key=None)
        for number in range(self.options.hosts):
            host = self.host(number)
            recipient = self.new_key(host)
            tree = self.tree(number)
            tree.mkdir(parents=True)
            for name in REPOSITORIES:
                words = ("host", "add", self.place(name), host, "--for", recipient, "--source", tree, "--at", self.place(name))
                self.must(*words)
            for file in range(12):
                self.write_file(tree, file)
            self.write(tree / "large", 400_000)

    def new_key(self, name):
        file = self.work / f"{name}.key"
        subprocess.run(["age-keygen", "-o", file], check=True, stderr=subprocess.DEVNULL)
        return subprocess.run(["age-keygen", "-y", file], check=True, capture_output=True, text=True).stdout.strip()

    def write(self, file, size):
        file.write_bytes(random.randbytes(size))

    def write_file(self, tree, number):
        """Writes a file of its own, or with `--shared` one of forty that hosts have in common."""
        if self.options.shared and number % 2:
            common = random.randrange(40)
            content = random.Random(common).randbytes(20_000 + 1000 * common)
            (tree / f"{number:02}").write_bytes(content)
        else:
            self.write(tree / f"{number:02}", random.randrange(100, 60_000))

    def change(self, number):
        tree = self.tree(number)
        for file in random.sample(range(12), 3):
            self.write_file(tree, file)
        with open(tree / "large", "r+b") as large:
            large.seek(random.randrange(0, 380_000))
            large.write(random.randbytes(9000))

    def back_up(self, number):
        self.change(number)
        host, tree = self.host(number), self.tree(number)
        content = digests(tree)
        names = (random.choice(REPOSITORIES),) if self.options.shared else REPOSITORIES
        to = [word for name in names for word in ("--to", self.place(name))]
        words = [self.program, "backup", tree, *to, "--host", host, "--every", "1d", "--json", "--quiet", "--workers", "1"]
        words += ["--dedup", "repository"] if self.options.shared else []
        is_killed = random.random() < self.options.kills
        begun = time.monotonic()
        with subprocess.Popen(
            list(map(str, words)),
            env=self.environment("me" if self.options.shared else host, host),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            if is_killed:
                time.sleep(random.random() * self.seconds * 1.1)
                process.kill()
            out, err = process.communicate(timeout=600)
        with self.lock:
            if not is_killed:
                self.seconds += 0.1 * (time.monotonic() - begun - self.seconds)
            self.note(out, process.returncode, names, (number, content), err)

    def note(self, out, code, names, source, err):
        """Notes what was acknowledged. A result that was printed before the kill is an acknowledgement, too."""
        lines = [line for line in out.splitlines() if line.startswith("{") and line.endswith("}")]
        result = json.loads(lines[-1]) if lines else {}
        self.counts["killed" if code == -9 else f"exit code {code}"] += 1
        if code not in (0, -9):
            self.failures.append(err.strip().splitlines()[:1])
        if result.get("type") != "result":
            return
        self.counts["with content of other hosts"] += bool(result.get("shared_with"))
        self.counts["bytes of content"] += result["bytes"]
        self.counts["bytes that were stored"] += result["stored_bytes"]
        alone = [{"exit_code": 0 if result["complete"] else 3}]
        for name, destination in zip(names, result.get("destinations") or alone):
            if destination["exit_code"] == 0:
                self.kept[name][result["id"]] = source

    def keep_house(self):
        """Forgets, prunes and rotates until the nights are over."""
        turn = 0
        while not self.is_over.wait(self.options.pause):
            name = REPOSITORIES[turn % 2]
            turn += 1
            for backup in self.old_backups(name):
                self.count("forget", *self.run("forget", self.place(name), backup))
            self.count("prune", *self.run("prune", self.place(name), "--quiet"))
            # What a killed host left in one repository alone. Hosts cannot read it, so they cannot complete it themselves.
            if turn % 3 == 0:
                self.count("sync", *self.run("sync", self.place("near"), self.place("far"), "--quiet"))
            if turn % 5 == 0:
                self.count("rotate", *self.run("key", "rotate", self.place(name), "--yes"))
            # Else each prune refuses.
            self.accept(self.place(name))

    def old_backups(self, name):
        """Chooses some backups that are not the last of their host, and expects them no more."""
        with self.lock:
            newest = {number: backup for backup, (number, _) in sorted(self.kept[name].items())}
            old = sorted(set(self.kept[name]) - set(newest.values()))
            old = random.sample(old, min(3, len(old) // 5))
            for backup in old:
                self.kept[name].pop(backup)
        return old

    def count(self, what, code, _, err):
        with self.lock:
            self.counts[f"{what}: exit code {code}"] += 1
            if code:
                self.failures.append([f"{what}: {err.strip()[:300]}"])

    def check(self):
        for name in REPOSITORIES:
            place = self.place(name)
            self.accept(place)
            code, out, err = self.run("list", place, "--json")
            listed = [json.loads(line) for line in out.splitlines()]
            errors = [f"{backup['id']}: {backup['error']}" for backup in listed if backup.get("error")]
            if code:
                self.problems.append(f"{name}: list: exit code {code}: {errors} {err}")
            whole = {backup["id"] for backup in listed if backup["complete"]}
            lost = sorted(set(self.kept[name]) - whole)
            self.problems += [f"{name}: {backup} was acknowledged and is not listed" for backup in lost]
            self.counts[f"listed in {name}"] = len(listed)
            self.counts[f"acknowledged in {name}"] = len(self.kept[name])
            code, out, err = self.run("verify", place, "--data", "--quiet", limit=3600)
            if code:
                self.problems.append(f"{name}: verify: exit code {code}: {out[:2000]} {err}")
            # Also those that a sync brought, and those of killed programs that nobody was told of.
            for backup in random.sample(sorted(whole), min(self.options.restores, len(whole))):
                self.compare(name, backup)
            code, _, err = self.run("prune", place)
            if code:
                self.problems.append(f"{name}: the last prune: {err}")
            code, _, err = self.run("verify", place, limit=3600)
            if code:
                self.problems.append(f"{name}: verify after the last prune: {err}")

    def accept(self, place):
        """A backup that was under way when the key was rotated counts only if a person says so; its host was told that it failed."""
        for backup in map(json.loads, self.run("list", place, "--json")[1].splitlines()):
            if "does not count" in (backup.get("error") or ""):
                self.count("accept", *self.run("key", "accept", place, backup["id"]))

    def compare(self, name, backup):
        to = self.work / "restored"
        shutil.rmtree(to, ignore_errors=True)
        code, _, err = self.run("restore", f"{self.place(name)}@{backup}", "--to", to, "--quiet")
        known = [kept[backup][1] for kept in self.kept.values() if backup in kept]
        if code:
            self.problems.append(f"{name}: {backup} does not restore: {err}")
        elif not known:
            self.counts["restored, and the tree is not known"] += 1
        elif digests(to) != known[0]:
            self.problems.append(f"{name}: {backup} is restored, and is not what was backed up")
        else:
            self.counts["restored and the same"] += 1


def digests(tree):
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(tree.iterdir())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--hosts", type=int, default=200)
    parser.add_argument("--nights", type=int, default=5)
    parser.add_argument("--kills", type=float, default=0.3, help="the share of backups that are killed")
    parser.add_argument("--jobs", type=int, default=4, help="backups at once")
    parser.add_argument("--restores", type=int, default=40, help="backups of each repository that are restored and compared")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between prunes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shared", action="store_true", help="hosts may read, and share content")
    options = parser.parse_args()
    random.seed(options.seed)
    with tempfile.TemporaryDirectory(prefix="fleet-soak-") as work:
        soak = Soak(options, pathlib.Path(work))
        soak.prepare()
        house = threading.Thread(target=soak.keep_house)
        house.start()
        try:
            with ThreadPoolExecutor(options.jobs) as pool:
                for _ in range(options.nights):
                    list(pool.map(soak.back_up, random.sample(range(options.hosts), options.hosts)))
        finally:
            soak.is_over.set()
            house.join()
        soak.check()
    for what, count in sorted(soak.counts.items()):
        print(f"{count:8} {what}")
    for failure, count in collections.Counter(map(str, soak.failures)).most_common(10):
        print(f"failed {count} times: {failure}")
    for problem in soak.problems:
        print(f"PROBLEM: {problem}")
    print("nothing that was acknowledged is lost" if not soak.problems else f"{len(soak.problems)} problems")
    return bool(soak.problems)


if __name__ == "__main__":
    sys.exit(main())
