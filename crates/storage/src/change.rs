//! Asks for another medium: by a command, a changer, or a person at the terminal.
//!
//! A command is started without a shell. It gets the request in its environment, and of this
//! process's environment only [`KEPT_VARIABLES`]: keys and passphrases are not among them.

use crate::robot::Robot;
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::secrecy::ask_line;
use std::{
    env,
    ffi::OsString,
    io::{self, Read},
    path::PathBuf,
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Variables that the command gets from this process.
const KEPT_VARIABLES: [&str; 6] = ["PATH", "HOME", "USER", "LANG", "TERM", "TZ"];
/// A command is stopped after this time, unless another one was chosen.
const PATIENCE: Duration = Duration::from_secs(3600);
/// Time between two looks at the command.
const LOOK: Duration = Duration::from_millis(20);
/// Bytes that are read of the output of a command; it fails if it prints more.
const MAX_OUTPUT_BYTES: u64 = 1 << 20;
/// Exit code of a command that leaves the change to a person.
const ASK_A_PERSON: i32 = 1;

/// How media are changed.
#[derive(Debug, Clone, Default)]
pub struct MediaChange {
    /// Who changes them.
    pub by: MediaChanger,
    /// Time after which a command is stopped.
    pub patience: Option<Duration>,
}

/// Who changes media.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum MediaChanger {
    /// A person at the terminal.
    #[default]
    Person,
    /// A program and its arguments; the request is in its environment.
    Command(Vec<OsString>),
    /// A script as that of dump -F: it gets the drive and the number of the volume.
    DumpScript(PathBuf),
    /// A changer at this device, by mtx.
    Robot(PathBuf),
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
        self.is_automatic() || fullbore_platform::secrecy::has_terminal()
    }

    /// Returns whether media are changed without a person.
    pub fn is_automatic(&self) -> bool {
        self.by != MediaChanger::Person
    }

    /// Asks for a medium, and waits until it is there.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the command cannot be started; the system's.
    pub fn ask(&self, request: &ChangeRequest) -> Result<Changed> {
        let patience = self.patience.unwrap_or(PATIENCE);
        let words = match &self.by {
            MediaChanger::Person => return ask_person(request),
            MediaChanger::Robot(device) => return Robot::new(device, patience).change(request),
            MediaChanger::Command(words) => words.clone(),
            MediaChanger::DumpScript(script) => vec![
                script.clone().into_os_string(),
                request.drive.clone().into(),
                request.volume.to_string().into(),
            ],
        };
        let status = run_command(&words, &request.variables(), Stdio::null(), patience)?.0;
        match status.code() {
            Some(0) => Ok(Changed::Yes),
            Some(ASK_A_PERSON) => ask_person(request),
            _ => Ok(Changed::No),
        }
    }
}

/// Runs a command that changes media, for this time at most. Returns its output if `output` is a pipe.
///
/// # Errors
/// [`ErrorKind::NotFound`] if it cannot be started; [`ErrorKind::Unreachable`] if it does not end; the system's.
pub(crate) fn run_command(
    words: &[OsString],
    variables: &[(&'static str, String)],
    output: Stdio,
    patience: Duration,
) -> Result<(ExitStatus, Vec<u8>)> {
    let failed = |error: io::Error| {
        let message = format!("could not run the command {:?}", words[0]);
        Error::io(message, error)
    };
    let kept = KEPT_VARIABLES
        .iter()
        .filter_map(|name| Some((*name, env::var_os(name)?)));
    let mut child = Command::new(&words[0])
        .args(&words[1..])
        .env_clear()
        .envs(kept)
        .envs(variables.iter().map(|(name, value)| (*name, value)))
        .stdin(Stdio::null())
        .stdout(output)
        .spawn()
        .map_err(failed)?;
    // Beside the wait, so that a command which prints much does not stop, and one which hangs is stopped.
    let reader = child.stdout.take().map(|pipe| {
        thread::spawn(move || {
            let mut printed = Vec::new();
            let read = pipe.take(MAX_OUTPUT_BYTES).read_to_end(&mut printed);
            read.map(|_| printed)
        })
    });
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            break status;
        }
        if begun.elapsed() > patience {
            child.kill().and_then(|()| child.wait()).map_err(failed)?;
            let message = format!("the command {:?} did not end", words[0]);
            return Err(Error::new(ErrorKind::Unreachable, message)
                .because(format!("it was stopped after {} s", patience.as_secs())));
        }
        thread::sleep(LOOK);
    };
    let printed = reader.and_then(|reader| reader.join().ok());
    Ok((
        status,
        printed.transpose().map_err(failed)?.unwrap_or_default(),
    ))
}

impl ChangeRequest {
    fn variables(&self) -> [(&'static str, String); 6] {
        let action = match self.action {
            ChangeAction::Next => "next",
            ChangeAction::Want => "want",
        };
        [
            ("FULLBORE_MEDIA_ACTION", action.to_owned()),
            ("FULLBORE_MEDIA_DRIVE", self.drive.clone()),
            ("FULLBORE_MEDIA_SET", self.set.clone()),
            ("FULLBORE_MEDIA_VOLUME", self.volume.to_string()),
            ("FULLBORE_MEDIA_LABEL", self.label.clone()),
            ("FULLBORE_MEDIA_REASON", self.reason.clone()),
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
    use std::os::unix::fs::PermissionsExt;

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
            by: MediaChanger::Command(words.iter().map(OsString::from).collect()),
            patience: Some(Duration::from_secs(2)),
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
        let error = change(&["sleep", "60"]).ask(&request()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unreachable);
    }

    #[test]
    fn a_script_of_dump_gets_the_drive_and_the_number() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("script");
        let text = "#!/bin/sh\n[ \"$*\" = \"/mnt/a 3\" ] || exit 2\n";
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        let change = MediaChange {
            by: MediaChanger::DumpScript(script),
            patience: None,
        };
        assert_eq!(change.ask(&request()).unwrap(), Changed::Yes);
        let other = ChangeRequest {
            volume: 4,
            ..request()
        };
        assert_eq!(change.ask(&other).unwrap(), Changed::No);
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
            "FULLBORE_MEDIA_ACTION=want",
            "FULLBORE_MEDIA_DRIVE=/mnt/a",
            "FULLBORE_MEDIA_SET=20261121T054501Z-k3f9qz",
            "FULLBORE_MEDIA_VOLUME=3",
            "FULLBORE_MEDIA_LABEL=a-003.tar.zst",
            "FULLBORE_MEDIA_REASON=two files are on it",
        ] {
            assert!(lines.contains(&line), "{line}");
        }
        // Variables that tests run with: they stand for secrets.
        assert!(!environment.contains("CARGO"), "{environment}");
    }
}
