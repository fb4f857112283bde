"""A PostgreSQL cluster of the newest version that `peers.sh` installed: made, started, asked, stopped.

Its server runs as user postgres where this program is root, as it refuses to be root
itself; it listens on a socket in a directory of its own and nowhere else, so that any
port is free; and it is stopped by its data directory.
"""

import glob
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager

DEFAULT_DIR = os.environ.get("FULLBORE_BENCH_DIR") or "/var/tmp/fullbore-bench"
PORT = "5432"


def bin_dir():
    """Of the newest version beside the corpora, else of Debian's."""
    found = glob.glob(f"{DEFAULT_DIR}/peers/root/usr/lib/postgresql/*/bin") or glob.glob("/usr/lib/postgresql/*/bin")
    return max(found, key=lambda path: int(path.split("/")[-2]))


def as_postgres(command):
    if os.geteuid() != 0:
        return command
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *command]


def own(path):
    """Gives the directory to the user the server runs as."""
    if os.geteuid() == 0:
        shutil.chown(path, "postgres", "postgres")
    os.chmod(path, 0o700)
    return path


class Cluster:
    def __init__(self, root, server_bin=None):
        """`server_bin`: of a server that came without the other programs; those are Debian's."""
        self.root = root
        self.bin, self.server_bin = bin_dir(), server_bin
        self.sockets = None     # while it runs

    # ------------------------------------------------------------------ programs

    def tool(self, name):
        own = self.server_bin and os.path.join(self.server_bin, name)
        return own if own and os.path.exists(own) else os.path.join(self.bin, name)

    def run(self, name, *args, text=None):
        env = {**os.environ, "LC_ALL": "C.UTF-8", "TZ": "UTC"}
        subprocess.run(as_postgres([self.tool(name), *args]), check=True, cwd="/", env=env,
                       input=text and text.encode(), stdout=subprocess.DEVNULL)

    def client(self):
        """What leads the programs of PostgreSQL to the server."""
        return ["-h", self.sockets, "-p", PORT, "-U", "postgres"]

    def url(self):
        """The same for fullbore."""
        return f"postgres://postgres@/postgres?host={self.sockets}&port={PORT}"

    def sql(self, text):
        self.run("psql", *self.client(), "-q", "-v", "ON_ERROR_STOP=1", "postgres", text=text)

    def ask(self, text):
        """The one value of an answer."""
        return subprocess.check_output(
            as_postgres([self.tool("psql"), *self.client(), "-qAtX", "-v", "ON_ERROR_STOP=1", "-c", text, "postgres"]),
            text=True, cwd="/").strip()

    # ---------------------------------------------------------------------- life

    def make(self, settings, *options):
        own(self.root)
        self.run("initdb", "-D", self.root, "-U", "postgres", "-A", "trust", "-E", "UTF8", "-N", *options)
        with open(os.path.join(self.root, "postgresql.conf"), "a") as conf:
            conf.writelines(f"{name} = {value}\n" for name, value in settings.items())

    @contextmanager
    def running(self, settings={}):
        """Starts the server, with settings for this time only, and stops it whatever happens."""
        with tempfile.TemporaryDirectory(prefix="fbpg.") as self.sockets:
            own(self.sockets)
            chosen = " ".join(f"-c {name}={value}" for name, value in settings.items())
            self.run("pg_ctl", "-D", self.root, "-w", "-l", os.path.join(self.sockets, "log"),
                     "-o", f"-k {self.sockets} -p {PORT} {chosen}", "start")
            try:
                yield self
            finally:
                self.run("pg_ctl", "-D", self.root, "-w", "-m", "fast", "stop")

    def warm(self):
        """Nothing is left to write, and all files are in the page cache."""
        self.sql("CHECKPOINT")
        buffer = bytearray(1 << 20)
        for folder, _, names in os.walk(self.root):
            for name in names:
                with open(os.path.join(folder, name), "rb", buffering=0) as file:
                    while file.readinto(buffer):
                        pass
