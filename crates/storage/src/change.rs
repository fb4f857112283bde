//! Asks for another medium: by a command, or a person at the terminal.
//!
//! The command is started without a shell. It gets the request in its environment, and of this
//! process's environment only [`KEPT_VARIABLES`]: keys and passphrases are not among them.

use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::secrecy::ask_line;
use std::{
    env,
    ffi::OsString,
    io,
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Variables that the command gets from this process.
const KEPT_VARIABLES: [&str; 6] = ["PATH", "HOME", "USER", "LANG", "TERM", "TZ"];
/// The command is stopped after this time.
const PATIENCE: Duration = Duration::from_secs(3600);
/// Time between two looks at the command.
const LOOK: Duration = Duration::from_millis(20);
/// Exit code of a command that leaves the change to a person.
const ASK_A_PERSON: i32 = 1;

/// How media are changed.
#[derive(Debug, Clone, Default)]
pub struct MediaChange {
    /// The program and its arguments; empty: a person is asked.
    pub command: Vec<OsString>,
}

/// Why a medium is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeAction {
    /// A backup goes on with the next volume.
    Next,
    /// A reader needs this volume.
    Want,
}

/// The medium that is needed.
#[derive(Debug, Clone)]
pub struct ChangeRequest {
    /// What it is for.
    pub action: ChangeAction,
    /// The place of the media, such as the prefix of the volumes.
    pub drive: String,
    /// The id of the backup.
    pub set: String,
    /// The number of the volume.
    pub volume: u32,
    /// The name of the volume.
    pub label: String,
    /// Why it is needed, for a person.
    pub reason: String,
}

/// The answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// The medium may be there. Its label decides.
    Yes,
    /// It does not come.
    No,
}

impl MediaChange {
    /// Returns whether anybody can be asked: a command, or a person at a terminal.
    pub fn is_possible(&self) -> bool {
        !self.command.is_empty() || fullbore_platform::secrecy::has_terminal()
    }

    /// Asks for a medium, and waits until it is there.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the command cannot be started; the system's.
    pub fn ask(&self, request: &ChangeRequest) -> Result<Changed> {
        if self.command.is_empty() {
            return ask_person(request);
        }
        match self.run(request)?.code() {
            Some(0) => Ok(Changed::Yes),
            Some(ASK_A_PERSON) => ask_person(request),
            _ => Ok(Changed::No),
        }
    }

    fn run(&self, request: &ChangeRequest) -> Result<ExitStatus> {
        let failed = |error: io::Error| {
            let message = format!("could not run the change command {:?}", self.command[0]);
            Error::io(message, error)
        };
        let kept = KEPT_VARIABLES
            .iter()
            .filter_map(|name| Some((*name, env::var_os(name)?)));
        let mut child = Command::new(&self.command[0])
            .args(&self.command[1..])
            .env_clear()
            .envs(kept)
            .envs(request.variables())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let begun = Instant::now();
        loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                return Ok(status);
            }
            if begun.elapsed() > PATIENCE {
                child.kill().and_then(|()| child.wait()).map_err(failed)?;
                let message = format!("the change command {:?} did not end", self.command[0]);
                return Err(Error::new(ErrorKind::Unreachable, message)
                    .because(format!("it was stopped after {} s", PATIENCE.as_secs())));
            }
            thread::sleep(LOOK);
        }
    }
}

impl ChangeRequest {
    fn variables(&self) -> [(&'static str, String); 6] {
        let action = match self.action {
            ChangeAction::Next => "next",
            ChangeAction::Want => "want",
        };
        [
            ("FULLBORE_ACTION", action.to_owned()),
            ("FULLBORE_DRIVE", self.drive.clone()),
            ("FULLBORE_SET", self.set.clone()),
            ("FULLBORE_VOLUME", self.volume.to_string()),
            ("FULLBORE_LABEL", self.label.clone()),
            ("FULLBORE_REASON", self.reason.clone()),
        ]
    }
}

/// Asks the person at the terminal; without a terminal the medium does not come.
fn ask_person(request: &ChangeRequest) -> Result<Changed> {
    let ChangeRequest { label, reason, .. } = request;
    let question = format!("{reason}\nInsert {label:?} and press Enter, or enter \"no\"");
    let answer = ask_line(&question)
        .map_err(|error| Error::io("could not ask for a medium at the terminal", error))?;
    Ok(match answer.as_deref().map(str::trim) {
        Some("") => Changed::Yes,
        _ => Changed::No,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> ChangeRequest {
        ChangeRequest {
            action: ChangeAction::Want,
            drive: "/mnt/a".to_owned(),
            set: "20261121T054501Z-k3f9qz".to_owned(),
            volume: 3,
            label: "a-003.tar.zst".to_owned(),
            reason: "two files are on it".to_owned(),
        }
    }

    fn change(words: &[&str]) -> MediaChange {
        MediaChange {
            command: words.iter().map(OsString::from).collect(),
        }
    }

    #[test]
    fn exit_codes_of_the_command_decide() {
        let answer = |script| change(&["sh", "-c", script]).ask(&request()).unwrap();
        assert_eq!(answer("exit 0"), Changed::Yes);
        assert_eq!(answer("exit 2"), Changed::No);
        assert_eq!(answer("kill -9 $$"), Changed::No);
        let error = change(&["/absent/program"]).ask(&request()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::NotFound);
    }

    #[test]
    fn the_command_learns_what_is_needed_and_no_secret() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("environment");
        let script = format!("env > {}", file.display());
        change(&["sh", "-c", &script]).ask(&request()).unwrap();
        let environment = std::fs::read_to_string(file).unwrap();
        let lines: Vec<_> = environment.lines().collect();
        for line in [
            "FULLBORE_ACTION=want",
            "FULLBORE_DRIVE=/mnt/a",
            "FULLBORE_SET=20261121T054501Z-k3f9qz",
            "FULLBORE_VOLUME=3",
            "FULLBORE_LABEL=a-003.tar.zst",
            "FULLBORE_REASON=two files are on it",
        ] {
            assert!(lines.contains(&line), "{line}");
        }
        // Variables that tests run with: they stand for secrets.
        assert!(!environment.contains("CARGO"), "{environment}");
    }
}
