#!/usr/bin/env python3
"""Measures fullbore against its peers and its targets: run.py [ROW...]

Makes the corpora and installs the peers first, where they are missing.  The two
sides of a comparison run in turn (A B A B ...) after one uncounted run of each;
a ratio is the median of the ratios of the pairs.  Prints a Markdown table; the
exit status is 1 if a row failed or missed its target.
"""

import argparse
import dataclasses
import filecmp
import functools
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from statistics import median

import corpora
from cloud import Cloud
from incremental import Incremental
from measure import (CORES, MIB, Failed, Pairs, Side, Work, bytes_read_below, count_syscalls, fastest, run,
                     zstd_alone)
from network import Network
from postgres import Postgres
from table import HEADER, Line, ratio_line, wall_line

HERE = os.path.dirname(os.path.abspath(__file__))
MEMORY = 128 * MIB
SLACK = 64 * MIB


@dataclass
class Corpus:
    name: str
    path: str
    files: int
    bytes: int

    @property
    def room(self):
        """Bytes of tmpfs that hold a copy; None if memory is the wrong place for one."""
        return None if self.bytes > 4 << 30 else int(self.bytes * 1.1) + self.files * 5000 + 256 * MIB

    @property
    def cached(self):
        """What of it is in the page cache before each run."""
        return self.path if self.room else None


class Bench:
    """The rows, and what they share."""

    def __init__(self, args):
        self.base = os.path.abspath(corpora.DEFAULT_DIR)
        self.fullbore = os.path.abspath(args.fullbore)
        self.pairs = args.pairs
        self.work = Work(self.base)
        self.postgres = Postgres(self)
        self.incremental = Incremental(self)
        self.cloud = Cloud(self)
        self.network = Network(self)

    # ------------------------------------------------------------- ingredients

    @functools.cache
    def corpus(self, name):
        path, counts = corpora.ensure(name, self.base)
        return Corpus(name, path, counts["files"], counts["bytes"])

    def alternate(self, a, b):
        a(check=True)
        b(check=True)
        return Pairs(a, b, [(a(), b()) for _ in range(self.pairs)])

    def place(self, name, corpus):
        """Where a fresh place of that name will be, and what makes it."""
        return (self.work.path(name, on_disk=corpus.room is None),
                lambda: self.work.fresh(name, corpus.room))

    def backup(self, corpus, *options, source=None, place="out"):
        folder, prepare = self.place(place, corpus)
        return Side([self.fullbore, "backup", source or corpus.path, "--to",
                     f"{folder}/{corpus.name}.repo", *options], prepare, source=corpus.cached)

    def tar_zstd(self, corpus, place="out"):
        folder, prepare = self.place(place, corpus)
        return Side(f"tar -C {corpus.path} -cf - . | zstd -1 -T0 -q -o {folder}/{corpus.name}.tar.zst", prepare,
                    source=corpus.cached)

    def into(self, corpus, command):
        """A restore into the fresh place `restored`, checked by count and size."""
        folder, prepare = self.place("restored", corpus)

        def check():
            found = corpora.count_tree(folder)
            if (found["files"], found["bytes"]) != (corpus.files, corpus.bytes):
                raise Failed(f"restored {found['files']} files, {found['bytes']} bytes; "
                             f"there were {corpus.files}, {corpus.bytes}")
        return Side(command(folder), prepare, check)

    def repository(self, corpus):
        """Makes a repository of the corpus; returns its path."""
        side = self.backup(corpus, place="source")
        side()
        return side.command[4]

    def restore(self, corpus, repo, *options):
        return self.into(corpus, lambda to: [self.fullbore, "restore", repo, "--to", to, *options])

    # ------------------------------------------------------------ the least possible

    @functools.cache
    def zstd_alone(self, name):
        """What zstd needs for the tar of a corpus; of `cluster` without its WAL, which no side stores."""
        corpus = self.corpus(name)
        tar = os.path.join(self.work.fresh("tar"), f"{name}.tar")
        without = ["--exclude=./pg_wal/*"] if name == "cluster" else []
        run(["tar", "-C", corpus.path, *without, "-cf", tar, "."])
        return zstd_alone(tar)

    def floor(self, row, what, seconds, pairs, command):
        """What no program could be below that has to do this on these cores; only reported."""
        return ratio_line(row, f"of which {what} alone takes, on {CORES} cores", None,
                          [(seconds / CORES, b.wall) for _, b in pairs.runs], [command, pairs.b.command])

    def zstd_floor(self, row, name, pairs):
        alone = self.zstd_alone(name)
        return self.floor(row, "zstd", alone.compress, pairs, alone.command)

    # ---------------------------------------------------------- against tar|zstd

    @functools.cache
    def backup_pairs(self, name):
        corpus = self.corpus(name)
        return self.alternate(self.backup(corpus), self.tar_zstd(corpus))

    def backup_tar(self, row, name, target):
        pairs = self.backup_pairs(name)
        yield wall_line(row, "wall", target, pairs)

    def cpu(self, row, name, wall_target, cpu_target):
        pairs, alone = self.backup_pairs(name), self.zstd_alone(name)
        yield ratio_line(row, f"wall against zstd's own work ({alone.speed:.0f} MB/s) on {CORES} cores",
                         wall_target, [(a.wall, alone.compress / CORES) for a, _ in pairs.runs],
                         [pairs.a.command, alone.command])
        yield ratio_line(row, "CPU, user + system", cpu_target, pairs.of("cpu"),
                         [pairs.a.command, pairs.b.command])
        yield ratio_line(row, "of which zstd alone takes", None, [(alone.compress, b.cpu) for _, b in pairs.runs],
                         [alone.command, pairs.b.command])

    def restore_tar(self, row, name, target):
        corpus = self.corpus(name)
        repo = self.repository(corpus)
        packed = repo.removesuffix(".repo") + ".tar.zst"
        run(f"tar -C {corpus.path} -cf - . | zstd -1 -T0 -q -o {packed}")
        pairs = self.alternate(self.restore(corpus, repo),
                               self.into(corpus, lambda to: f"zstd -dc {packed} | tar -xf - -C {to}"))
        yield wall_line(row, "wall", target, pairs)

    def size(self, row, name, target):
        corpus = self.corpus(name)
        side = self.backup(corpus)
        side()
        ours = corpora.count_tree(side.command[4])["bytes"]
        packed, prepare = self.place("out", corpus)
        packed += "/all.tar.zst"
        prepare()
        command = f"tar -C {corpus.path} -cf - . | zstd -1 -q -o {packed}"
        run(command)
        yield ratio_line(row, "stored bytes", target, [(ours / 1e6, os.path.getsize(packed) / 1e6)],
                         [side.command, command], unit="MB")

    # --------------------------------------------------- against restic and borg

    @functools.cache
    def restic_modes(self):
        text = subprocess.run(["restic", "help", "backup"], capture_output=True, text=True).stdout
        found = re.search(r"--compression mode.*one of \(([\w|-]+)\)", text)
        return [m for m in found[1].split("|") if m not in ("max", "better")] if found else [None]

    def restic(self, corpus, mode):
        folder, prepare = self.place("out", corpus)
        env = {"RESTIC_PASSWORD": "bench", "RESTIC_CACHE_DIR": f"{folder}/cache"}
        options = ["--compression", mode] if mode else []

        def init():
            prepare()
            run(["restic", "init", "-q", "-r", f"{folder}/repo"], env)
        return Side(["restic", "backup", "-q", "-r", f"{folder}/repo", *options, corpus.path], init, env=env,
                    source=corpus.cached)

    def backup_restic(self, row, name, target):
        corpus, modes = self.corpus(name), self.restic_modes()

        def against(modes, *options):
            peer = fastest([self.restic(corpus, mode) for mode in modes])
            return self.alternate(self.backup(corpus, *options), peer)

        pairs = against([m for m in modes if m != "off"])
        yield wall_line(row, "wall, restic in its fastest mode that compresses", target, pairs)
        yield self.zstd_floor(row, name, pairs)
        if "off" in modes:
            yield wall_line(row, "wall, both without compression", target, against(["off"], "--compress", "none"))
            yield wall_line(row, "wall, only fullbore compresses", target, against(["off"]))

    def backup_borg(self, row, name, target):
        corpus = self.corpus(name)
        folder, prepare = self.place("out", corpus)
        env = {"BORG_BASE_DIR": f"{folder}/base", "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes"}

        def init():
            prepare()
            os.mkdir(f"{folder}/base")
            run(["borg", "init", "--encryption", "none", f"{folder}/repo"], env)
        borg = Side(["borg", "create", "--compression", "zstd,1", f"{folder}/repo::a", corpus.path], init, env=env,
                    source=corpus.cached)
        pairs = self.alternate(self.backup(corpus), borg)
        yield wall_line(row, "wall", target, pairs)
        yield self.zstd_floor(row, name, pairs)

    def vykar(self, corpus):
        """Not in Debian: `cargo build --release -p vykar-cli` in its source, and its program on the path."""
        folder, prepare = self.place("out", corpus)
        command = ["vykar", "--config", f"{folder}/vykar.yaml"]
        env = {"HOME": folder, "XDG_CACHE_HOME": f"{folder}/cache"}

        def init():
            prepare()
            with open(f"{folder}/vykar.yaml", "w") as file:
                file.write(f"sources: [{corpus.path}]\nrepositories: [{{label: bench, url: {folder}/repo}}]\n"
                           "encryption: {mode: none}\ncompression: {algorithm: zstd, zstd_level: 1}\n")
            run([*command, "init"], env)
        return Side([*command, "backup"], init, env=env, source=corpus.cached)

    def backup_vykar(self, row, name, target):
        corpus = self.corpus(name)
        pairs = self.alternate(self.backup(corpus), self.vykar(corpus))
        yield wall_line(row, "wall", target, pairs)
        yield self.zstd_floor(row, name, pairs)

    # --------------------------------------------------------- memory, system calls

    def rss(self, row):
        limit = (MEMORY + SLACK) / MIB
        peaks = {}
        for name in ("pg", "tree", "mail", "sync", "million", "huge"):
            corpus = self.corpus(name)
            backup = self.backup(corpus, "--memory", "128M", place="source")
            restore = self.restore(corpus, backup.command[4], "--memory", "128M")
            for verb, side in (("backup", backup), ("restore", restore)):
                peak = peaks[name, verb] = side(check=True).rss / MIB
                yield Line(row, f"peak memory, {verb} of {name}", peak, limit, unit=" MiB",
                           commands=[side.command], raw=[peak])
            self.work.clear()
        for verb in ("backup", "restore"):
            yield ratio_line(row, f"peak memory, {verb}: million against tree", 1.10,
                             [(peaks["million", verb], peaks["tree", verb])], [], unit="MiB")

    def syscalls(self, row):
        for name in ("tree", "million"):
            corpus = self.corpus(name)
            backup = self.backup(corpus, place="source")
            restore = self.restore(corpus, backup.command[4])
            for verb, side, target in (("backup", backup, 5), ("restore", restore, 7)):
                side(check=True)    # warm
                side.prepare()
                calls = count_syscalls(side.command)
                yield Line(row, f"system calls per file, {verb} of {name}", calls / corpus.files, target,
                           a=f"{calls} calls", b=f"{corpus.files} files",
                           commands=[["strace", "-f", "-c", *side.command]], raw=[calls])

    # ---------------------------------------------------------------- the others

    def digest(self, row, name, target):
        corpus = self.corpus(name)
        ours = Side([self.fullbore, "backup", corpus.path, "--to", "null:", "--compress", "none"],
                    source=corpus.cached)
        rdiff = Side(f"find {corpus.path} -type f -print0 | "
                     f"xargs -0 -n1 -P{CORES} rdiff signature > /dev/null", source=corpus.cached)
        pairs = self.alternate(ours, rdiff)
        yield wall_line(row, "wall", target, pairs)

    def one_file(self, row):
        corpus = self.corpus("million")
        repo = self.repository(corpus)
        folder = "11/0c"
        name = f"{folder}/{sorted(os.listdir(f'{corpus.path}/{folder}'))[500]}"
        to = self.work.fresh("restored", 64 * MIB)

        def command(stored):
            return [self.fullbore, "restore", repo, "--to", to, stored]

        def works(stored):
            self.work.fresh("restored", 64 * MIB)
            try:
                run(command(stored))
            except Failed:
                return False
            found = [os.path.join(d, n) for d, _, names in os.walk(to) for n in names]
            return len(found) == 1 and filecmp.cmp(found[0], f"{corpus.path}/{name}", shallow=False)

        # a stored path starts at the root of the backup, or with the name given
        stored = next(filter(works, (name, f"million/{name}", f"{corpus.path}/{name}".lstrip("/"))), None)
        if stored is None:
            raise Failed(f"{name} of the corpus million cannot be restored alone")
        walls = []
        for _ in range(5):
            self.work.fresh("restored", 64 * MIB)
            walls.append(run(command(stored)).wall * 1000)
        middle = median(walls)
        yield Line(row, "wall", middle, 50, unit=" ms", commands=[command(stored)], raw=walls,
                   shown=f"{middle:.1f} ms ({min(walls):.1f}–{max(walls):.1f})")
        self.work.fresh("restored", 64 * MIB)
        size = bytes_read_below(command(stored), repo)
        if not size:
            raise Failed("no read of the repository was seen")
        yield Line(row, "read of the repository", size / MIB, 3, unit=" MiB", raw=[size],
                   commands=[["strace", "-ff", "-y", *command(stored)]])

    def scheduler(self, row, target):
        if os.geteuid() != 0:
            raise Failed("only root can mount a loop device")
        for name in ("pg", "tree"):
            yield self.scheduler_of(row, self.corpus(name), target)

    def scheduler_of(self, row, corpus, target):
        """Backups from a cold ext4 on a loop device, under one scheduler and the other."""
        def side(scheduler):
            plain = self.backup(corpus, source=disk.source)
            return Side(plain.command, lambda: (plain.prepare(), disk.cool(scheduler)))

        with ColdDisk(self.work, corpus) as disk:
            pairs = self.alternate(side("mq-deadline"), side("bfq"))
        return ratio_line(row, f"speed under bfq / under mq-deadline, cold, {corpus.name} "
                               "(A mq-deadline, B bfq)", target, pairs.of("wall"),
                          [pairs.a.command], sign=">=")

    def cold(self, row, target, target_requests):
        """A backup of small files that are not in the page cache, against tar: seconds, and requests to the disk."""
        if os.geteuid() != 0:
            raise Failed("only root can mount a loop device")
        corpus, requests = self.corpus("tree"), {"A": [], "B": []}

        def side(name, command):
            return Side(command, lambda: disk.cool("mq-deadline"), lambda: requests[name].append(disk.reads()))

        with ColdDisk(self.work, corpus) as disk:
            backup = [self.fullbore, "backup", disk.source, "--to", "null:", "--compress", "lz4"]
            pairs = self.alternate(side("A", backup), side("B", f"tar -C {disk.source} -cf - . | cat"))
        yield wall_line(row, "cold, tree, lz4 to `null:` / `tar \\| cat`", target, pairs)
        yield ratio_line(row, "requests to the disk", target_requests, list(zip(requests["A"], requests["B"])),
                         [pairs.a.command, pairs.b.command], unit="")


class ColdDisk:
    """An ext4 on a loop device with a copy of a corpus, of which nothing is in the page cache after `cool`."""

    def __init__(self, work, corpus):
        self.work, self.corpus = work, corpus
        self.image = os.path.join(work.disk, "loop.img")
        self.source = os.path.join(work.disk, "loop")
        self.umount = ["umount", self.source]

    def __enter__(self):
        os.makedirs(self.source, exist_ok=True)
        with open(self.image, "wb") as file:
            file.truncate(int(self.corpus.bytes * 1.2) + self.corpus.files * 6000 + 512 * MIB)
        run(["mkfs.ext4", "-q", "-F", "-i", "4096", self.image])
        setup = ["losetup", "--show", "-f", self.image]
        try:        # past the page cache, where the file system below can
            device = subprocess.check_output([*setup, "--direct-io=on"], text=True, stderr=subprocess.DEVNULL)
        except subprocess.CalledProcessError:
            device = subprocess.check_output(setup, text=True)
        self.device = device.strip()
        self.block = f"/sys/block/{os.path.basename(self.device)}"
        self.detach = ["losetup", "-d", self.device]
        self.work.undo.append(self.detach)
        self.work.do(["mount", self.device, self.source], undo=self.umount)
        run(["cp", "-a", f"{self.corpus.path}/.", self.source])
        return self

    def cool(self, scheduler):
        self.work.undone(self.umount)
        os.system(f"modprobe -q {scheduler} 2>/dev/null")   # or it is built in
        with open(f"{self.block}/queue/scheduler", "w") as file:
            file.write(scheduler)
        os.sync()
        with open(self.image, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with open("/proc/sys/vm/drop_caches", "w") as file:
            file.write("3")
        self.work.do(["mount", "-o", "ro", self.device, self.source], undo=self.umount)
        self.before = self.requests()

    def requests(self):
        """Requests to read that the device has had."""
        with open(f"{self.block}/stat") as file:
            return int(file.read().split()[0])

    def reads(self):
        """Requests to read since `cool`."""
        return self.requests() - self.before

    def __exit__(self, *_):
        self.work.undone(self.umount)
        self.work.undone(self.detach)
        os.unlink(self.image)


ROWS = {
    "backup-pg": lambda b, r: b.backup_tar(r, "pg", 0.55),
    "backup-pg-restic": lambda b, r: b.backup_restic(r, "pg", 0.25),
    "backup-pg-vykar": lambda b, r: b.backup_vykar(r, "pg", None),
    "backup-pg-borg": lambda b, r: b.backup_borg(r, "pg", 0.25),
    "backup-tree": lambda b, r: b.backup_tar(r, "tree", 0.62),
    "backup-tree-restic": lambda b, r: b.backup_restic(r, "tree", 0.20),
    "backup-tree-vykar": lambda b, r: b.backup_vykar(r, "tree", None),
    "backup-tree-borg": lambda b, r: b.backup_borg(r, "tree", 0.20),
    "cpu-pg": lambda b, r: b.cpu(r, "pg", 1.25, 0.65),
    "cpu-tree": lambda b, r: b.cpu(r, "tree", 1.25, 0.65),
    "restore-pg": lambda b, r: b.restore_tar(r, "pg", 0.55),
    "restore-tree": lambda b, r: b.restore_tar(r, "tree", 0.60),
    "size-pg": lambda b, r: b.size(r, "pg", 1.02),
    "size-tree": lambda b, r: b.size(r, "tree", 1.02),
    "rss": lambda b, r: b.rss(r),
    "syscalls": lambda b, r: b.syscalls(r),
    "digest-mail": lambda b, r: b.digest(r, "mail", 0.15),
    "one-file": lambda b, r: b.one_file(r),
    "scheduler": lambda b, r: b.scheduler(r, 0.90),
    "cold": lambda b, r: b.cold(r, 0.45, 0.15),
    "pgbb-zstd": lambda b, r: b.postgres.basebackup_zstd(r, 0.65),
    "pgbb-none": lambda b, r: b.postgres.basebackup_plain(r, "none", 0.75),
    "pgbb-lz4": lambda b, r: b.postgres.basebackup_plain(r, "lz4", 0.75),
    "pgbr-backup": lambda b, r: b.postgres.backrest_backup(r, 0.30),
    "pgbr-restore": lambda b, r: b.postgres.backrest_restore(r, 0.50),
    "pgtar-restore": lambda b, r: b.postgres.tar_restore(r, 0.70),
    "pg-relations": lambda b, r: b.postgres.relations(r, (MEMORY + SLACK) / MIB),
    "pg-latency": lambda b, r: b.postgres.latency(r),
    "inc-tree": lambda b, r: b.incremental.unchanged(r, "tree", 0.15),
    "inc-million": lambda b, r: b.incremental.unchanged_million(r, 5, (MEMORY + SLACK) / MIB),
    "inc-pg": lambda b, r: b.incremental.cluster(r, 0.5, 0.8),
    "inc-summaries": lambda b, r: b.incremental.summaries(r, 1.2),
    "inc-days": lambda b, r: b.incremental.days(r, 1.15, 1.05),
    "s3-backup-pg": lambda b, r: b.cloud.backup(r, "pg", 0.40),
    "s3-backup-tree": lambda b, r: b.cloud.backup(r, "tree", 0.35),
    "s3-restore-pg": lambda b, r: b.cloud.restore(r, "pg", 0.50),
    "s3-restore-tree": lambda b, r: b.cloud.restore(r, "tree", 0.50),
    "s3-large": lambda b, r: b.cloud.large(r, 0, 8 << 30, 1.11),
    "s3-large-20": lambda b, r: b.cloud.large(r, 20, 2 << 30, 1.18),
    "s3-large-100": lambda b, r: b.cloud.large(r, 100, 2 << 30, 1.18),
    "net-tree": lambda b, r: b.network.backup(r, "tree", 0.40),
    "net-pg": lambda b, r: b.network.backup(r, "pg", 0.40),
    "net-late-20": lambda b, r: b.network.late(r, "pg", 20, 0.90),
    "net-late-100": lambda b, r: b.network.late(r, "pg", 100, 0.90),
    "net-copy": lambda b, r: b.network.copy(r, "sync", 0.5),
    "net-cluster": lambda b, r: b.network.cluster(r, 0.80),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0],
                                     epilog="rows: " + ", ".join(ROWS))
    parser.add_argument("rows", nargs="*", metavar="ROW")
    parser.add_argument("--pairs", type=int, default=5, help="counted runs of each side")
    parser.add_argument("--quick", action="store_true", help="one pair")
    parser.add_argument("--fullbore", metavar="PATH", help="the program to measure",
                        default=os.path.join(HERE, "..", "target", "release", "fullbore"))
    parser.add_argument("--out", metavar="FILE", help="all raw figures, as JSON")
    args = parser.parse_args()
    if unknown := set(args.rows) - set(ROWS):
        parser.error("no such row: " + ", ".join(sorted(unknown)))
    if not os.access(args.fullbore, os.X_OK):
        parser.error(f"no program at {args.fullbore}: cargo build --release, or --fullbore PATH")
    if args.quick:
        args.pairs = 1
    return args


def main():
    args = arguments()
    subprocess.run([os.path.join(HERE, "peers.sh"), corpora.DEFAULT_DIR], check=True, stdout=sys.stderr)
    os.environ["PATH"] = f"{corpora.DEFAULT_DIR}/peers/bin:{os.environ['PATH']}"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    bench, lines, errors = Bench(args), [], {}
    print(HEADER, flush=True)
    try:
        for row in args.rows or ROWS:
            print(f"{row} ...", file=sys.stderr, flush=True)
            try:
                for line in ROWS[row](bench, row):
                    lines.append(line)
                    text = line.markdown().replace(bench.fullbore, "fullbore")
                    print(text.replace(bench.work.disk, "$W").replace(bench.base, "$D"), flush=True)
            except (Failed, OSError, subprocess.SubprocessError) as error:
                errors[row] = str(error)
                print(f"| {row} | failed: {str(error).replace('|', chr(92) + '|')} |  |  | **no** |  |  |  |", flush=True)
            finally:
                bench.work.clear()
    finally:
        bench.work.close()
        if args.out:
            figures = [{**dataclasses.asdict(line), "met": line.met} for line in lines]
            with open(args.out, "w") as file:
                json.dump({"cores": CORES, "pairs": args.pairs, "lines": figures, "errors": errors}, file, indent=1)
    return 1 if errors or any(line.met is False for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
