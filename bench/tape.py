#!/usr/bin/env python3
"""Backs up a tree to a simulated tape drive in real time, by fullbore and by GNU tar, and prints what the drive had to do.

    bench/tape.py PROGRAM DIR [MEGABYTES]

PROGRAM is fullbore. DIR gets a tree of MEGABYTES (900 by default) in files of 30 kB, and the tapes; both are removed. The drive
has a tenth of the speeds of an LTO-8 drive, 11 to 30 MB/s, so that a source keeps up on any machine; a start takes 0.3 s. A slow source gives
15 MB/s, and the drive chooses a step; the slowest gives 6 MB/s, which is below its lowest one. Beside them, the same stream in records of 1 MiB
without a buffer before the drive, as `tar | dd` writes it.
"""

import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

program, place = sys.argv[1], pathlib.Path(sys.argv[2])
megabytes = int(sys.argv[3]) if len(sys.argv) > 3 else 900
FILE_BYTES = 30_000
DRIVE = {
    "clock": "real",
    "steps": "11M,13M,15M,17M,19M,21M,23M,25M,27M,30M",
    "start-seconds": "0.3",
    "buffer-bytes": "100M",
    "mark-seconds": "0.1",
    "wind-seconds": "1",
    "capacity-bytes": "100G",
}
SETTINGS = [word for name, value in DRIVE.items() for word in ("--set", f"{name}={value}")]


def counters(tape):
    told = subprocess.run([program, "simtape", tape, "--json"], check=True, capture_output=True, text=True)
    return json.loads(told.stdout)["counters"]


def make_tree(tree):
    rng = random.Random(1)
    for number in range(megabytes * 1_000_000 // FILE_BYTES):
        path = tree / f"{number % 100:02}" / f"{number:06}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.randbytes(FILE_BYTES))


def run(name, tape, command, shell_environment=None):
    subprocess.run(command, check=True, env={**os.environ, **(shell_environment or {})}, stdout=subprocess.DEVNULL)
    told = counters(tape)
    rate = told["written_bytes"] / told["write_seconds"]
    print(
        f"| {name} | {told['written_bytes'] / 1e6:.0f} MB | {rate / 1e6:.1f} MB/s | {told['writes']:,} | {told['starts']} "
        f"| {told['found_empty']:,} | {told['flushes']} |",
        flush=True,
    )


with tempfile.TemporaryDirectory(dir=place) as work:
    work = pathlib.Path(work)
    tree = work / "tree"
    make_tree(tree)
    print("| program | written | rate | writes | starts | writes that found the buffer empty | waits for the medium |\n|---|---|---|---|---|---|---|")

    def fullbore(name, *options):
        tape = work / "tape"
        subprocess.run([program, "simtape", tape, "-q", *SETTINGS], check=True, stdout=subprocess.DEVNULL)
        backup = [program, "backup", tree, "--to", f"tape:sim:{tape}", "--quiet", "--catalog", work / "catalog"]
        run(name, tape, [*backup, "--tape-buffer", "200M", *options])
        tape.unlink()

    fullbore("fullbore, encrypted", "--encrypt-to", "age1zvkyg2lqzraa2lnjvqej32nkuu0ues2s82hzrye869xeexvn73equnujwj")
    for rate in ("15M", "6M"):
        fullbore(f"fullbore, source of {rate}B/s", "--max-rate", rate)
        tape = work / "tape"
        words = " ".join(f"'{word}'" for word in SETTINGS)
        stream = f"'{program}' backup '{tree}' --to - -q --max-rate {rate}"
        take = f"'{program}' simtape '{tape}' --stdin --record-size 1M -q {words}"
        run(f"the same stream without a buffer, {rate}B/s", tape, ["sh", "-c", f"{stream} | {take}"])
        tape.unlink()
    for factor in (20, 2048):
        tape, shell = work / "tape", work / "rsh"
        words = " ".join(f"'{word}'" for word in SETTINGS)
        shell.write_text(f"#!/bin/sh\nexec '{program}' simtape '{tape}' --rmt -q {words}\n")
        shell.chmod(0o755)
        tar = ["tar", f"--rsh-command={shell}", "-b", str(factor), "-cf", "localhost:nst0", "-C", tree, "."]
        run(f"GNU tar -b {factor}", tape, tar)
        tape.unlink()
