//! Copies this program to another host, into the cache of the user there.

use fullbore_format::error::{Error, ErrorKind, Result};
use rustix::system::uname;
use sha2::{Digest, Sha256};
use std::{
    env,
    fmt::Write as _,
    fs::File,
    io::{self, Read},
    process::{Command, Output, Stdio},
};

/// The directory on the other host, for its shell.
const CACHE: &str = "\"${XDG_CACHE_HOME:-$HOME/.cache}/fullbore\"";

/// Exit code of the script on a host of another architecture.
const OTHER_MACHINE: i32 = 71;

/// Exit code of the script for a copy whose digest is another one.
const OTHER_BYTES: i32 = 72;

/// This program, as it is called on other hosts that have a copy.
#[derive(Debug, Clone)]
pub(super) struct ProgramCopy {
    /// The version, and the beginning of the digest.
    name: String,
    /// SHA-256 of the file, as hexadecimal digits.
    digest: String,
}

impl ProgramCopy {
    /// Reads this program.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn of_this_program() -> Result<Self> {
        let failed = |error| Error::io("could not read this program", error);
        let mut file = this_program().map_err(failed)?;
        let mut digest = Sha256::new();
        let mut bytes = vec![0; 1 << 20];
        loop {
            let read = file.read(&mut bytes).map_err(failed)?;
            if read == 0 {
                break;
            }
            digest.update(&bytes[..read]);
        }
        let mut digits = String::new();
        for byte in digest.finalize() {
            let _ = write!(digits, "{byte:02x}");
        }
        Ok(Self {
            name: format!("{}-{}", env!("CARGO_PKG_VERSION"), &digits[..16]),
            digest: digits,
        })
    }

    /// Returns the words that start the copy, for the shell of the other host; arguments follow.
    pub(super) fn shell_words(&self) -> String {
        format!("sh -c 'exec {CACHE}/{} \"$@\"' sh", self.name)
    }

    /// Copies this program with a command that runs the script behind it on the other host, which messages call `peer`.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if that host has another architecture, [`ErrorKind::System`] if the copy is not the same; the command
    /// failed.
    pub(super) fn install(&self, mut ssh: Command, peer: &str) -> Result<()> {
        let failed = |error| Error::io(format!("could not copy fullbore to {peer}"), error);
        let output = ssh
            .arg(format!("sh -c '{}'", self.script()))
            .stdin(Stdio::from(this_program().map_err(failed)?))
            .stdout(Stdio::piped())
            .output()
            .map_err(failed)?;
        self.check(&output, peer)
    }

    /// Returns the script, without single quotes, as it stands between them.
    fn script(&self) -> String {
        let machine = machine();
        let Self { name, digest } = self;
        format!(
            "umask 077; m=$(uname -m); [ \"$m\" = {machine} ] || {{ echo \"$m\"; exit {OTHER_MACHINE}; }}; \
             dir={CACHE}; mkdir -p \"$dir\" && new=$(mktemp \"$dir/.new-XXXXXX\") || exit 1; \
             cat >\"$new\" && chmod 700 \"$new\" || {{ rm -f \"$new\"; exit 1; }}; \
             [ \"$(sha256sum <\"$new\" | cut -c1-64)\" = {digest} ] || {{ rm -f \"$new\"; exit {OTHER_BYTES}; }}; \
             mv \"$new\" \"$dir/{name}\""
        )
    }

    fn check(&self, output: &Output, peer: &str) -> Result<()> {
        let failed = |kind, why: String| {
            let message = format!("could not copy fullbore to {peer}");
            Error::new(kind, message).because(why)
        };
        let said = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(0) => Ok(()),
            Some(OTHER_MACHINE) => {
                let theirs = String::from_utf8_lossy(&output.stdout);
                let theirs: String = theirs.trim().chars().take(40).collect();
                let ours = machine();
                let why = format!("that host is {theirs:?}, and this program is for {ours:?}");
                Err(failed(ErrorKind::Unsupported, why).hint("install fullbore there"))
            }
            Some(OTHER_BYTES) => {
                let why = "the copy has another digest, or that host has no sha256sum";
                Err(failed(ErrorKind::System, why.to_owned()))
            }
            _ => Err(failed(
                ErrorKind::Unreachable,
                format!("ssh ended with {}: {}", output.status, said.trim()),
            )),
        }
    }
}

fn this_program() -> io::Result<File> {
    File::open(env::current_exe()?)
}

fn machine() -> String {
    uname().machine().to_string_lossy().into_owned()
}
