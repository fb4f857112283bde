//! The hint of an error that has none of its own: what it means for the data, and what to do next.

use super::args::Command;
use fullbore_format::error::{Error, ErrorKind};
use fullbore_platform as platform;

/// How a command uses backups, which decides what its errors mean for the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DataUse {
    /// It stores backups.
    Stores,
    /// It writes files from backups.
    Restores,
    /// It reads backups.
    Reads,
    /// It is about something else, or says itself what is to be done.
    Other,
}

impl DataUse {
    pub(super) fn of(command: &Command) -> Self {
        match command {
            Command::Backup(_) | Command::Sync(_) => Self::Stores,
            Command::Restore(_) | Command::Export(_) => Self::Restores,
            Command::List(_)
            | Command::Show(_)
            | Command::Cat(_)
            | Command::Mount(_)
            | Command::Diff(_)
            | Command::Find(_)
            | Command::Copy(_)
            | Command::Drill(_) => Self::Reads,
            _ => Self::Other,
        }
    }
}

const REPORT: &str = "this is an error of fullbore itself: please report it, with the command and all that it printed";
const STORED_SO_FAR: &str = "no incomplete backup is listed; run the same command again, which uses what was stored until now";
const ONCE_MORE: &str = "run the same command again; for a target that has files by now, add --delta, which writes only what is missing";
const WHAT_IS_LOST: &str = "`fullbore verify REPO` says which backups and files are affected, and `fullbore repair REPO` what can be made anew";
const WITHOUT_IT: &str = "--keep-going goes on with all that is whole; `fullbore verify REPO` says which backups and files are affected, and \
    `fullbore repair REPO` what can be made anew";
const ANOTHER_USER: &str =
    "run it as a user who may do that: as root (`sudo fullbore …`), or as the owner";

/// Adds a hint, if the error has none and one is known for its kind.
pub(super) fn advised(error: Error, about: DataUse) -> Error {
    if error.hint.is_some() {
        return error;
    }
    let is_refusal = error.kind == ErrorKind::Permission && error.system().is_some();
    let hint = match (error.kind, about) {
        (ErrorKind::Bug, _) => REPORT,
        (ErrorKind::Unreachable, DataUse::Stores) => STORED_SO_FAR,
        (ErrorKind::Unreachable, DataUse::Restores) => ONCE_MORE,
        (ErrorKind::Corrupt, DataUse::Restores) => WITHOUT_IT,
        (ErrorKind::Corrupt, DataUse::Reads) => WHAT_IS_LOST,
        _ if is_refusal && platform::user().0 != 0 => ANOTHER_USER,
        _ => return error,
    };
    error.hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_without_a_hint_gets_one_for_its_kind_and_its_command() {
        let hint = |kind, about| {
            let error = advised(Error::new(kind, "x"), about);
            error.hint.map(|hint| hint.into_owned())
        };
        for (kind, about, expected) in [
            (ErrorKind::Bug, DataUse::Other, Some(REPORT)),
            (ErrorKind::Unreachable, DataUse::Stores, Some(STORED_SO_FAR)),
            (ErrorKind::Unreachable, DataUse::Restores, Some(ONCE_MORE)),
            (ErrorKind::Unreachable, DataUse::Reads, None),
            (ErrorKind::Corrupt, DataUse::Restores, Some(WITHOUT_IT)),
            (ErrorKind::Corrupt, DataUse::Reads, Some(WHAT_IS_LOST)),
            (ErrorKind::Corrupt, DataUse::Other, None),
            (ErrorKind::Usage, DataUse::Stores, None),
        ] {
            assert_eq!(hint(kind, about).as_deref(), expected, "{kind:?} {about:?}");
        }
        let own = Error::new(ErrorKind::Bug, "x").hint("its own");
        assert_eq!(
            advised(own, DataUse::Other).hint.as_deref(),
            Some("its own")
        );
    }
}
