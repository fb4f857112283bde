#!/usr/bin/env python3
"""Mounts side by side: `fullbore mount` against `restic mount` and `borg mount`, in turn, as root.

    bench/mount.py FULLBORE WORK [--files 60000] [--large 2048] [--rounds 5]

WORK is an empty directory on the disk to measure. A program that is not installed is left out. Each round mounts afresh,
with a cold page cache: tar of all files, one large file read from begin to end, and the peak memory of the mounting process.
The large file is also restored by `fullbore restore`, whose rate is the measure. Borg needs llfuse or pyfuse3.
"""

import argparse
import os
import random
import shutil
import statistics
import subprocess
import time

PASSWORD = {"RESTIC_PASSWORD": "bench", "BORG_PASSPHRASE": "bench", "BORG_RELOCATED_REPO_ACCESS_IS_OK": "yes"}


def run(*words, **more):
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **PASSWORD}, **more)


def cold():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as setting:
        setting.write("3")


def make_source(source, files, large_mib):
    chance = random.Random(47)
    for number in range(files):
        directory = os.path.join(source, f"d{number // 200:04}")
        os.makedirs(directory, exist_ok=True)
        with open(os.path.join(directory, f"f{number:06}"), "wb") as out:
            line = b"%d some text of a small file\n" % number
            out.write(line * chance.randrange(1, 400))
    with open(os.path.join(source, "large"), "wb") as out:
        for _ in range(large_mib):
            half = chance.randbytes(1 << 19)
            out.write(half + bytes(1 << 19))


class Tool:
    def __init__(self, name, work):
        self.name = name
        self.repository = os.path.join(work, f"repository-{name}")
        self.at = os.path.join(work, f"mount-{name}")
        os.makedirs(self.at, exist_ok=True)


class Fullbore(Tool):
    def __init__(self, program, work):
        super().__init__("fullbore", work)
        self.program = program

    def backup(self, source):
        run(self.program, "backup", source, "--to", self.repository, "--quiet")

    def mount(self):
        words = [self.program, "mount", f"{self.repository}@latest", self.at, "--quiet"]
        return subprocess.Popen(words), self.at

    def restore_large(self, target):
        run(self.program, "restore", self.repository, "--to", target, "--quiet", "large")


class Restic(Tool):
    def backup(self, source):
        run("restic", "-r", self.repository, "init")
        run("restic", "-r", self.repository, "backup", ".", cwd=source)

    def mount(self):
        words = ["restic", "-r", self.repository, "mount", self.at]
        mounted = subprocess.Popen(words, stdout=subprocess.DEVNULL, env={**os.environ, **PASSWORD})
        return mounted, os.path.join(self.at, "snapshots", "latest")


class Borg(Tool):
    def backup(self, source):
        run("borg", "init", "-e", "none", self.repository)
        run("borg", "create", f"{self.repository}::one", ".", cwd=source)

    def mount(self):
        words = ["borg", "mount", "--foreground", f"{self.repository}::one", self.at]
        return subprocess.Popen(words, stdout=subprocess.DEVNULL, env={**os.environ, **PASSWORD}), self.at


def timed(line):
    begin = time.monotonic()
    run("sh", "-c", line)
    return time.monotonic() - begin


def peak_mib(pid):
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0


def measure(tool):
    cold()
    process, tree = tool.mount()
    deadline = time.monotonic() + 600
    while not os.path.exists(os.path.join(tree, "large")):
        if time.monotonic() > deadline or process.poll() is not None:
            raise SystemExit(f"{tool.name} does not mount")
        time.sleep(0.02)
    first = timed(f"ls -R {tree}/ >/dev/null")
    archive = timed(f"tar -C {tree}/ --exclude=./large -cf - . | cat >/dev/null")
    large = timed(f"cat {tree}/large >/dev/null")
    peak = peak_mib(process.pid)
    run("umount", tool.at)
    process.wait()
    return {"ls -R s": first, "tar s": archive, "large s": large, "peak MiB": peak}


def main():
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("fullbore")
    words.add_argument("work")
    words.add_argument("--files", type=int, default=60_000)
    words.add_argument("--large", type=int, default=2048, help="MiB of the large file")
    words.add_argument("--rounds", type=int, default=5)
    given = words.parse_args()
    source = os.path.join(given.work, "source")
    make_source(source, given.files, given.large)
    ours = Fullbore(os.path.abspath(given.fullbore), given.work)
    tools = [ours]
    tools += [Restic("restic", given.work)] if shutil.which("restic") else []
    tools += [Borg("borg", given.work)] if shutil.which("borg") else []
    for tool in tools:
        tool.backup(source)
    found = {tool.name: [] for tool in tools}
    restored = []
    for _ in range(given.rounds):
        for tool in tools:
            found[tool.name].append(measure(tool))
        cold()
        target = os.path.join(given.work, "restored")
        begin = time.monotonic()
        ours.restore_large(target)
        restored.append(time.monotonic() - begin)
        shutil.rmtree(target)
    for name, rounds in found.items():
        medians = {key: statistics.median(round[key] for round in rounds) for key in rounds[0]}
        print(name, ", ".join(f"{key} {value:.2f}" for key, value in medians.items()))
    print(f"fullbore restore of the large file: {statistics.median(restored):.2f} s")


if __name__ == "__main__":
    main()
