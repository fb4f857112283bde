"""Runs commands and measures them: time, memory, system calls; and the places they write to."""

import glob
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from typing import Callable

MIB = 1 << 20
CORES = len(os.sched_getaffinity(0))


class Failed(Exception):
    """A measured command, or something it needs, did not work."""


# ----------------------------------------------------------------- processes

@dataclass
class Run:
    """What one command took, with all its children."""
    wall: float     # seconds
    cpu: float      # seconds, user + system, of the whole process tree
    rss: int        # bytes, the largest process of the tree; never below this program's own (18 MiB)


def text_of(command):
    return command if isinstance(command, str) else shlex.join(command)


def run(command, env=None):
    """Runs a list directly, a string under a shell that fails with any part of a pipe."""
    argv = ["bash", "-o", "pipefail", "-c", command] if isinstance(command, str) else command
    with tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                 stderr=errors, env={**os.environ, **(env or {})},
                                 start_new_session=True)
        try:
            _, status, usage = os.wait4(child.pid, 0)
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)    # and its children
            child.wait()
            raise
        wall = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            errors.seek(0)
            tail = errors.read().decode(errors="replace").strip().splitlines()[-3:]
            raise Failed(f"exit {child.returncode}: {text_of(command)}: {' / '.join(tail)}")
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


# --------------------------------------------------------------- comparisons

@dataclass
class Side:
    """A command, and what has to be made ready before, and checked after, each run."""
    command: list | str
    prepare: Callable = lambda: None
    check: Callable = lambda: None
    env: dict = field(default_factory=dict)
    source: str | None = None       # its files are read into the page cache right before

    def __call__(self, check=False):
        self.prepare()
        if self.source:
            warm(self.source)
        result = run(self.command, self.env)
        if check:
            self.check()
        return result


@dataclass
class Pairs:
    a: Side
    b: Side
    runs: list

    def of(self, what):
        return [(getattr(a, what), getattr(b, what)) for a, b in self.runs]


def fastest(sides):
    """The side that takes least in one run each; one alone is not run for that."""
    return sides[0] if len(sides) == 1 else min(sides, key=lambda side: side().wall)


# -------------------------------------------------------------------- strace

def count_syscalls(command):
    """All system calls of the command, its threads and children."""
    with tempfile.NamedTemporaryFile("r") as table:
        run(["strace", "-f", "-c", "-o", table.name, *command])
        total = [line.split() for line in table if line.rstrip().endswith(" total")]
    if not total:
        raise Failed("strace made no table")
    return int(total[-1][3])    # % time, seconds, usecs/call, calls, [errors,] total


READS = "read,pread64,readv,preadv,preadv2,sendfile,copy_file_range"


def bytes_read_below(command, root):
    """Bytes the command reads, or maps, of files below `root`."""
    path = re.escape(os.path.realpath(root))
    read = re.compile(rf"^\w+\([^\"]*?\d+<{path}[/>].* = (\d+)$")
    mapped = re.compile(rf"^mmap\(\w+, (\d+), .*\d+<{path}[/>].* = 0x")
    total = 0
    with tempfile.TemporaryDirectory() as folder:
        # -ff: a file for each thread, so that no line is torn in two
        run(["strace", "-ff", "-y", "-s", "0", "-e", f"trace={READS},mmap",
             "-o", f"{folder}/trace", *command])
        for name in glob.glob(f"{folder}/trace*"):
            with open(name, errors="replace") as trace:
                for line in trace:
                    if match := read.match(line) or mapped.match(line):
                        total += int(match[1])
    return total


# ------------------------------------------------------------- the least possible

@dataclass
class Codec:
    """What zstd alone needs for some bytes, in blocks of 1 MiB at level 1, on one core."""
    compress: float     # seconds
    decompress: float   # seconds
    speed: float        # MB/s of compress
    command: str


def zstd_alone(path):
    command = ["zstd", "-b1", "-i15", "-B1M", "-T1", path]
    done = subprocess.run(command, text=True, check=True, errors="replace",
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    speeds = re.findall(r"\(x[\d.]+\),\s*([\d.]+) MB/s,\s*([\d.]+) MB/s", done.stdout)
    if not speeds:
        raise Failed("zstd -b printed no speeds")
    there, back = map(float, speeds[-1])
    size = os.path.getsize(path) / 1e6
    return Codec(size / there, size / back, there, text_of(command))


# -------------------------------------------------------------------- places

def warm(source):
    """Reads all files below `source`, so that they are in the page cache: borg takes what it reads out of it, and some
    machines what was not read for a minute."""
    subprocess.run(f"find {shlex.quote(source)} -type f -print0 | xargs -0 -r cat > /dev/null", shell=True, check=True)


def touch(place, size):
    """Fills a tmpfs and empties it again: a host may take back what its guest has freed, and to get it again takes longer
    than what is measured."""
    path, block = os.path.join(place, "touched"), bytes(MIB)
    with open(path, "wb", buffering=0) as file:
        for _ in range(size // MIB - 1):
            file.write(block)
    os.remove(path)


class Work:
    """A directory of working places, each a fresh tmpfs where that is possible.

    Without root there are no mounts: places are directories in /dev/shm.
    """

    def __init__(self, base):
        self.root = os.geteuid() == 0
        os.makedirs(base, exist_ok=True)
        self.disk = tempfile.mkdtemp(prefix="run.", dir=base)
        os.chmod(self.disk, 0o711)      # user postgres gets to its places
        self.memory = self.disk if self.root else tempfile.mkdtemp(dir="/dev/shm")
        self.undo = []      # commands that undo what is left, the last first
        # What fullbore remembers of repositories: of a fresh place, nothing.
        self.state = os.path.join(self.disk, "state")
        os.environ["FULLBORE_STATE_DIR"] = self.state

    def path(self, name, on_disk=False):
        return os.path.join(self.disk, name + ".disk") if on_disk else os.path.join(self.memory, name)

    def fresh(self, name, size=None):
        """An empty place of `size` bytes in memory; without a size, on disk."""
        path = self.path(name, on_disk=size is None)
        self.drop(path)
        shutil.rmtree(self.state, ignore_errors=True)
        os.mkdir(path)
        if size is not None and self.root:
            self.do(["mount", "-t", "tmpfs", "-o", f"size={size},nr_inodes=0,mode=755",
                     "fullbore-bench", path], undo=["umount", path])
            touch(path, size)
        return path

    def drop(self, path):
        self.undone(["umount", path])
        shutil.rmtree(path, ignore_errors=True)

    def clear(self):
        """Empties all places."""
        for folder in {self.disk, self.memory}:
            for name in os.listdir(folder):
                self.drop(os.path.join(folder, name))

    def do(self, command, undo):
        subprocess.run(command, check=True)
        self.undo.append(undo)

    def undone(self, command):
        """Undoes that one now, if it is still to be undone."""
        if command in self.undo:
            self.undo.remove(command)
            if subprocess.run(command).returncode and command[0] == "umount":
                # a process just killed still has it: it goes with the process
                subprocess.run(["umount", "-l", *command[1:]], check=True)

    def close(self):
        for command in reversed(list(self.undo)):
            self.undone(command)
        if not any(os.path.ismount(path) for path in glob.glob(f"{self.disk}/*")):
            for folder in {self.disk, self.memory}:
                shutil.rmtree(folder, ignore_errors=True)
