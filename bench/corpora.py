#!/usr/bin/env python3
"""Makes the corpora of the benchmarks: corpora.py [NAME...] [--dir DIR]

Every corpus NAME is the directory DIR/NAME; beside it DIR/NAME.json is written
last, with the counts, and marks the corpus complete: one that has its marker is
left alone, one that has none is made anew.  All contents come from one fixed
seed, except for tree (files of the installed distribution) and for the
identifiers and times PostgreSQL puts into its own files.
"""

import argparse
import base64
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

from server import DEFAULT_DIR, Cluster

SEED = 20240229
MB = 10**6


# ---------------------------------------------------------------- ingredients

def vocabulary(rng, count=6000):
    """Invented words; the frequent ones are short, as in a language."""
    syllables = [c + v + e for c in "b c d f g h l m n p r s t v w st th".split()
                 for v in "aeiou" for e in ("", "", "n", "r", "s", "l")]
    return ["".join(rng.choices(syllables, k=1 + min(3, i // 400 + i % 2)))
            for i in range(count)]


class Prose:
    """Text out of a vocabulary whose words occur by Zipf's law."""

    def __init__(self, rng):
        self.rng, self.words = rng, vocabulary(rng)
        total, self.weights = 0.0, []
        for rank in range(len(self.words)):
            total += 1 / (rank + 3)
            self.weights.append(total)

    def words_list(self, count):
        return self.rng.choices(self.words, cum_weights=self.weights, k=count)

    def text(self, size):
        """About `size` bytes of lines of twelve words."""
        words = self.words_list(size // 4 + 16)
        lines = (" ".join(words[i:i + 12]) for i in range(0, len(words), 12))
        return "\n".join(lines).encode()[:size]


def lognormal_sizes(rng, count, total, sigma, low, high):
    """`count` sizes between `low` and about `high` with the sum `total`."""
    sizes = [rng.lognormvariate(0, sigma) for _ in range(count)]
    scale = total / sum(sizes)
    for _ in range(20):     # clipping shifts the sum: settle the scale
        clipped = [min(high, max(low, int(s * scale))) for s in sizes]
        scale *= total / sum(clipped)
    return clipped


def write_file(path, data):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view):]
    finally:
        os.close(fd)


def count_tree(root):
    """The regular files, directories (with the root) and bytes below `root`."""
    files = dirs = size = 0
    stack = [root]
    while stack:
        dirs += 1
        with os.scandir(stack.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    stack.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    files += 1
                    size += entry.stat(follow_symlinks=False).st_size
    return {"files": files, "dirs": dirs, "bytes": size}


# ------------------------------------------------------------------------- pg

# in `pg` for good, in the others while they are filled
PG_LOADING = {
    "listen_addresses": "''",
    "wal_level": "minimal",
    "max_wal_senders": 0,
    "fsync": "off",
    "synchronous_commit": "off",
    "autovacuum": "off",
    "shared_buffers": "256MB",
    "maintenance_work_mem": "512MB",
    "max_parallel_maintenance_workers": 0,
    "max_parallel_workers_per_gather": 0,
    "min_wal_size": "32MB",
    "max_wal_size": "1GB",
}

# a server that does nothing by itself while it is backed up
PG_IDLE = {
    "listen_addresses": "''",
    "shared_buffers": "128MB",
    "autovacuum": "off",
    "checkpoint_timeout": "1h",
    "max_locks_per_transaction": 1024,
}

PG_LOAD = """
SELECT setseed(0.42);
CREATE TABLE random_data AS
  SELECT i::bigint AS id, md5(random()::text) AS hash, random() AS value,
         (random() * 2000000000)::int AS number,
         timestamptz '2020-01-01 00:00:00+00' + random() * interval '1500 days' AS at
  FROM generate_series(1, 6500000) AS i;
ALTER TABLE random_data ADD PRIMARY KEY (id);
CREATE INDEX ON random_data (hash);
CREATE INDEX ON random_data (value);
VACUUM (FREEZE, ANALYZE) random_data;
"""


PG_RELATIONS = """
SET client_min_messages = warning;
DO $$ BEGIN
  FOR i IN 1..100000 LOOP
    EXECUTE 'CREATE TABLE relation_' || i || ' (id int)';
    IF i % 10 = 0 THEN
      EXECUTE 'INSERT INTO relation_' || i || ' VALUES (' || i || ')';
    END IF;
    IF i % 5000 = 0 THEN
      COMMIT;
    END IF;
  END LOOP;
END $$;
"""


def fill(cluster):
    """1.3 GB of random rows, 1 GB of pgbench."""
    cluster.sql(PG_LOAD)
    cluster.run("pgbench", *cluster.client(), "-i", "-q", "-s", "70", "postgres")
    cluster.sql("CHECKPOINT")


def make_pg(root):
    """A stopped PostgreSQL cluster."""
    cluster = Cluster(root)
    cluster.make(PG_LOADING)
    with cluster.running():
        fill(cluster)
    cluster.run("pg_resetwal", "-D", root)      # leaves one segment in pg_wal


def make_cluster(root):
    """The same with checksums, to be started and backed up."""
    cluster = Cluster(root)
    cluster.make(PG_IDLE, "--data-checksums")
    with cluster.running(PG_LOADING):
        fill(cluster)
    cluster.run("pg_resetwal", "-D", root)


def make_relations(root):
    """100,000 tables of one column; every tenth holds a row, the files of the others are empty."""
    cluster = Cluster(root)
    cluster.make(PG_IDLE, "--data-checksums")
    with cluster.running(PG_LOADING):
        cluster.sql(PG_RELATIONS)
        cluster.sql("CHECKPOINT")
    cluster.run("pg_resetwal", "-D", root)


# ----------------------------------------------------------------------- tree

TREE_FILES, TREE_BYTES = 60_000, 700 * MB
TREE_ROOTS = ["/usr/include", "/usr/share", "/usr/lib/python3", "/usr/lib/python3.11"]
TREE_PACKAGES = ["libboost1.74-dev", "postgresql-doc-15", "libpython3.11-stdlib",
                 "python3.11-doc", "openjdk-17-doc", "linux-doc-6.1", "libglib2.0-doc"]


def regular_files(roots):
    """[(path, size)] in the order of the roots, each root sorted."""
    found = []
    for root in roots:
        below = []
        for folder, _, names in os.walk(root):
            for name in names:
                path = os.path.join(folder, name)
                if os.path.isfile(path) and not os.path.islink(path):
                    below.append((path, os.lstat(path).st_size))
        found += sorted(below)
    return found


def choose(files):
    """The first 60,000 files under the largest size limit that keeps the
    whole at about 700 MB; None if there are too few."""
    for limit in (2**n * MB for n in range(7, -3, -1)):
        chosen = [f for f in files if f[1] <= limit][:TREE_FILES]
        if len(chosen) == TREE_FILES and sum(s for _, s in chosen) <= TREE_BYTES * 1.03:
            return [path for path, _ in chosen]
    return None


def make_tree(root):
    """60,000 files of the distribution, with their modes, owners and times."""
    with tempfile.TemporaryDirectory(dir=os.path.dirname(root)) as extra:
        os.chmod(extra, 0o755)
        roots, packages = list(TREE_ROOTS), list(TREE_PACKAGES)
        while (chosen := choose(regular_files(roots))) is None:
            if not packages:
                raise RuntimeError("too few files in this distribution")
            package = packages.pop(0)
            target = os.path.join(extra, package)
            os.mkdir(target)
            subprocess.run(["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download",
                            package], cwd=extra, check=True, stdout=subprocess.DEVNULL)
            deb = next(n for n in os.listdir(extra) if n.endswith(".deb"))
            subprocess.run(["dpkg", "-x", deb, target], cwd=extra, check=True)
            os.unlink(os.path.join(extra, deb))
            roots.append(target)
        entries = set(chosen)
        for path in chosen:     # the directories above, for their attributes
            while (path := os.path.dirname(path)) not in ("/", extra) and path not in entries:
                entries.add(path)
        names = "\0".join(sorted(entries)).encode()
        copy = ("tar -C / --null --no-recursion -T - -P"
                f" --transform 's,^{extra}/,packages/,;s,^/,,' -cf - | tar -C '{root}' -xf -")
        subprocess.run(["bash", "-o", "pipefail", "-c", copy], input=names, check=True)


# ----------------------------------------------------------------------- mail

def message(rng, prose, number, size):
    """One mail of about `size` bytes: headers, prose, base64 parts if large."""
    who = [".".join(prose.words_list(2)) + "@" + prose.words_list(1)[0] + ".example"
           for _ in range(2)]
    boundary = f"=_{rng.getrandbits(96):024x}"
    stamp = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(1.5e9 + number * 7919))
    head = (f"Return-Path: <{who[0]}>\n"
            f"Received: from mx{rng.randrange(9)}.example (mx.example [192.0.2.{rng.randrange(255)}])\n"
            f"\tby mail.example with ESMTPS id {rng.getrandbits(64):016x}; {stamp}\n"
            f"From: <{who[0]}>\nTo: <{who[1]}>\nDate: {stamp}\n"
            f"Subject: {' '.join(prose.words_list(rng.randrange(2, 9)))}\n"
            f"Message-ID: <{rng.getrandbits(128):032x}@mail.example>\nMIME-Version: 1.0\n")
    if size < 30_000:
        head += "Content-Type: text/plain; charset=utf-8\n\n"
        return head.encode() + prose.text(max(0, size - len(head)))
    head += f'Content-Type: multipart/mixed; boundary="{boundary}"\n\n'
    parts = [head.encode(),
             f"--{boundary}\nContent-Type: text/plain; charset=utf-8\n\n".encode(),
             prose.text(min(size // 4, rng.randrange(1000, 40_000)))]
    left = size - sum(map(len, parts))
    while left > 0:
        part = min(left, rng.randrange(20_000, 2_000_000))
        # base64 takes 77 bytes for 57; one part in four is a text document
        raw = part * 57 // 77
        data = prose.text(raw) if rng.random() < 0.25 else rng.randbytes(raw)
        parts.append(f"\n--{boundary}\nContent-Type: application/octet-stream\n"
                     f"Content-Transfer-Encoding: base64\n\n".encode())
        parts.append(base64.encodebytes(data))
        left -= part + 120
    parts.append(f"--{boundary}--\n".encode())
    return b"".join(parts)


def make_mail(root):
    """12,700 mails, 850 MB, in 25 maildirs."""
    rng = random.Random(SEED + 1)
    prose = Prose(rng)
    for box in range(25):
        for sub in ("cur", "new", "tmp"):
            os.makedirs(f"{root}/user{box:02}/{sub}")
    sizes = lognormal_sizes(rng, 12_700, 850 * MB, 1.7, 700, 20 * MB)
    for number, size in enumerate(sizes):
        new = rng.random() < 0.1
        name = f"{1_500_000_000 + number * 7919}.M{rng.randrange(10**6):06}P{number}.mail"
        folder = f"{root}/user{rng.randrange(25):02}/{'new' if new else 'cur'}"
        write_file(f"{folder}/{name}{'' if new else ',S=%d:2,S' % size}",
                   message(rng, prose, number, size))


# ----------------------------------------------------------------------- sync

def document(rng, prose, kind, size):
    if kind == "jpg":
        return rng.randbytes(size)
    if kind == "csv":
        row = "{},{:.6f},{},{:08x}\n".format
        rows = [row(i, rng.random() * 1000, rng.choice(prose.words), rng.getrandbits(32))
                for i in range(size // 28 + 1)]
        return "".join(rows).encode()[:size]
    if kind == "bin":       # records: half of each is constant
        blank = bytes(range(32))
        noise = rng.randbytes(size // 2 + 32)
        return b"".join(noise[i:i + 32] + blank for i in range(0, len(noise), 32))[:size]
    return prose.text(size)


def make_sync(root):
    """7,800 files of mixed kinds and sizes, 530 MB, in 777 directories."""
    rng = random.Random(SEED + 2)
    prose = Prose(rng)
    folders = [(root, 0)]
    while len(folders) < 777:
        parent, depth = rng.choice(folders)
        if depth < 8:
            path = f"{parent}/{prose.words_list(1)[0]}-{len(folders)}"
            os.mkdir(path)
            folders.append((path, depth + 1))
    sizes = lognormal_sizes(rng, 7_800, 530 * MB, 2.2, 0, 30 * MB)
    for number, size in enumerate(sizes):
        kind = rng.choices(["jpg", "txt", "csv", "bin"], [4, 3, 2, 1])[0]
        write_file(f"{rng.choice(folders)[0]}/{number:05}.{kind}",
                   document(rng, prose, kind, size))


# -------------------------------------------------------------------- million

def make_million(root):
    """1,000,000 small files in 32 x 32 directories."""
    rng = random.Random(SEED + 3)
    prose = Prose(rng)
    number, total = 0, 1_000_000
    for outer in range(32):
        os.mkdir(f"{root}/{outer:02x}")
        for inner in range(32):
            folder = f"{root}/{outer:02x}/{inner:02x}"
            os.mkdir(folder)
            end = total * (outer * 32 + inner + 1) // 1024
            while number < end:
                # 100 to 900 bytes, each file with text of its own
                text = " ".join(prose.words_list(rng.randrange(10, 100)))
                write_file(f"{folder}/{number:07}.json",
                           f'{{"id": {number}, "key": "{rng.getrandbits(64):016x}", '
                           f'"text": "{text}"}}\n'.encode())
                number += 1


# ----------------------------------------------------------------------- huge

def make_huge(root):
    """One file of 8 GiB: blocks of 1 MiB, in turn random and repetitive."""
    rng = random.Random(SEED + 4)
    prose = Prose(rng)
    lines = [prose.text(rng.randrange(40, 160)).replace(b"\n", b" ") + b"\n"
             for _ in range(4000)]
    block = 1 << 20
    fd = os.open(f"{root}/huge.img", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        for number in range(8 * 1024):
            if rng.random() < 0.5:
                data = rng.randbytes(block)
            else:
                data = b"".join(rng.choices(lines, k=block // 80)).ljust(block, b".")[:block]
            if os.write(fd, data) != block:
                raise OSError("short write")
    finally:
        os.close(fd)


# ----------------------------------------------------------------------- main

MAKERS = {"pg": make_pg, "tree": make_tree, "mail": make_mail, "sync": make_sync,
          "huge": make_huge, "million": make_million, "cluster": make_cluster,
          "relations": make_relations}


def ensure(name, base=DEFAULT_DIR, log=sys.stderr):
    """Makes the corpus if it is missing; returns (path, counts)."""
    root, marker = os.path.join(base, name), os.path.join(base, name + ".json")
    if os.path.exists(marker):
        with open(marker) as file:
            return root, json.load(file)
    print(f"making the corpus {name} ...", file=log, flush=True)
    os.makedirs(base, exist_ok=True)
    shutil.rmtree(root, ignore_errors=True)
    os.mkdir(root)
    start = time.monotonic()
    MAKERS[name](root)
    counts = {**count_tree(root), "seconds": round(time.monotonic() - start, 1)}
    os.sync()
    with open(marker + ".new", "w") as file:
        json.dump(counts, file)
    os.rename(marker + ".new", marker)
    return root, counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MAKERS))
    parser.add_argument("--dir", default=DEFAULT_DIR)
    args = parser.parse_args()
    unknown = set(args.names) - set(MAKERS)
    if unknown:
        parser.error("no such corpus: " + ", ".join(sorted(unknown)))
    for name in args.names or MAKERS:
        _, c = ensure(name, os.path.abspath(args.dir))
        print(f"{name}: {c['files']} files, {c['dirs']} directories, "
              f"{c['bytes'] / MB:.0f} MB, made in {c['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
