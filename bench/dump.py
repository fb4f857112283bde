#!/usr/bin/env python3
"""How often a simulated drive starts, and finds no data, when dump writes to it with records of 10, 64 and 1024 KiB.

dump reads a file system of MB megabytes on a loop device, so this runs as root. The drive has the speeds of LTO-7, and real time.
"""

import argparse
import json
import os
import subprocess
import tempfile

RECORDS = [10, 64, 1024]


def run(*words, **more):
    return subprocess.run(words, check=True, capture_output=True, text=True, **more).stdout


def counters(program, directory, device, records):
    """Returns the counters of the drive after a dump with records of this many KiB."""
    cartridge = os.path.join(directory, "cartridge")
    script = os.path.join(directory, "rsh")
    with open(script, "w", encoding="utf-8") as file:
        file.write(f'#!/bin/sh\nexec {program} simtape {cartridge} --rmt -q --drive lto-7 "$@"\n')
    os.chmod(script, 0o755)
    if os.path.exists(cartridge):
        os.remove(cartridge)
    run("dump", "-0", "-b", str(records), "-f", "localhost:st0", device, env={**os.environ, "RSH": script})
    return json.loads(run(program, "simtape", cartridge, "--json").splitlines()[0])["counters"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fullbore", default="target/release/fullbore")
    parser.add_argument("--mb", type=int, default=1000)
    args = parser.parse_args()
    program = os.path.abspath(args.fullbore)
    with tempfile.TemporaryDirectory() as directory:
        tree = os.path.join(directory, "tree")
        os.mkdir(tree)
        for number in range(args.mb * 4):
            with open(os.path.join(tree, str(number)), "wb") as file:
                file.write(os.urandom(250_000))
        image = os.path.join(directory, "image")
        run("truncate", "-s", f"{args.mb * 5 // 4 + 64}M", image)
        run("mkfs.ext4", "-qF", "-d", tree, image)
        device = run("losetup", "-f", "--show", image).strip()
        try:
            for records in RECORDS:
                found = counters(program, directory, device, records)
                line = {"records_kib": records, **{key: found[key] for key in ("writes", "starts", "found_empty", "write_seconds")}}
                print(json.dumps(line), flush=True)
        finally:
            run("losetup", "-d", device)


if __name__ == "__main__":
    main()
