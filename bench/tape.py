#!/usr/bin/env python3
"""Backs up a tree to a simulated tape drive in real time, by fullbore and by GNU tar, and prints what the drive had to do.

    bench/tape.py PROGRAM DIR [--scale 10]

PROGRAM is fullbore. DIR gets a tree of 30,000 files, 9 GB / scale, and the tapes; both are removed. The drive
has the speeds of an LTO-8 drive, 110 to 300 MB/s, divided by the scale, so that a source keeps up on any machine; a start takes 3 s / scale.
A slow source gives half of the drive's highest speed, and the drive chooses a step; the slowest gives a fifth, which is below its lowest one. Beside them, the same stream in records of 1 MiB
without a buffer before the drive, as `tar | dd` writes it.
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import tempfile

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("program")
parser.add_argument("place", type=pathlib.Path)
parser.add_argument("--scale", type=int, default=10)
asked = parser.parse_args()
program, place, scale = asked.program, asked.place, asked.scale
FILES = 30_000
FILE_BYTES = 300_000 // scale
MEGABYTE = 1_000_000 // scale
DRIVE = {
    "clock": "real",
    "steps": ",".join(str(step * MEGABYTE) for step in [110, 130, 150, 170, 190, 210, 230, 250, 270, 300]),
    "start-seconds": f"{3 / scale:g}",
    "buffer-bytes": str(1000 * MEGABYTE),
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
    for number in range(FILES):
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
        run(name, tape, [*backup, "--tape-buffer", f"{2000 * MEGABYTE}", *options])
        tape.unlink()

    fullbore("fullbore, encrypted", "--encrypt-to", "age1zvkyg2lqzraa2lnjvqej32nkuu0ues2s82hzrye869xeexvn73equnujwj")
    for rate in (str(150 * MEGABYTE), str(60 * MEGABYTE)):
        fullbore(f"fullbore, source of {rate} B/s", "--max-rate", rate)
        tape = work / "tape"
        words = " ".join(f"'{word}'" for word in SETTINGS)
        stream = f"'{program}' backup '{tree}' --to - -q --max-rate {rate}"
        take = f"'{program}' simtape '{tape}' --stdin --record-size 1M -q {words}"
        run(f"the same stream without a buffer, {rate} B/s", tape, ["sh", "-c", f"{stream} | {take}"])
        tape.unlink()
    for factor in (20, 128, 2048):
        tape, shell = work / "tape", work / "rsh"
        words = " ".join(f"'{word}'" for word in SETTINGS)
        shell.write_text(f"#!/bin/sh\nexec '{program}' simtape '{tape}' --rmt -q {words}\n")
        shell.chmod(0o755)
        tar = ["tar", f"--rsh-command={shell}", "-b", str(factor), "-cf", "localhost:nst0", "-C", tree, "."]
        run(f"GNU tar -b {factor}", tape, tar)
        tape.unlink()
