//! Commands and options of other backup programs, and their equivalents here.
//!
//! Users of those programs type the words they know. clap would suggest the command that is spelled most alike, which is often
//! wrong: `restore` for `create`.

use super::{args::Cli, help, profile};
use crate::error::{Error, ErrorKind, Result};
use clap::{
    FromArgMatches,
    error::{ContextKind, ContextValue, ErrorKind as ClapErrorKind},
};

/// Commands of restic, borg, rsync, tar, pgBackRest and WAL-G, and the hint for each.
const HABITS: [(&[&str], &str); 16] = [
    (
        &["stanza-create", "repo-create", "rcreate"],
        "use `fullbore init REPO`, or let the first `fullbore backup` make it",
    ),
    (
        &["create", "backup-push"],
        "use `fullbore backup PATH --to REPO`",
    ),
    (
        &["snapshots", "info", "archives", "backup-list"],
        "use `fullbore list REPO`, and `fullbore show REPO@BACKUP` for one",
    ),
    (&["ls"], "use `fullbore list REPO@BACKUP`"),
    (&["stats"], "use `fullbore show REPO@BACKUP`"),
    (
        &["check", "fsck"],
        "use `fullbore verify REPO`, with --data for every byte",
    ),
    (
        &["extract", "recover", "dump", "backup-fetch"],
        "use `fullbore restore REPO@BACKUP --to DIR [PATH]`",
    ),
    (
        &["mount"],
        "nothing is mounted: `fullbore list REPO@BACKUP` shows what is in it, `fullbore restore REPO@BACKUP --to DIR PATH` gets it",
    ),
    (
        &["delete", "rm", "remove", "expire"],
        "use `fullbore forget REPO`, and `fullbore prune REPO` to free the space",
    ),
    (&["compact", "cleanup", "gc"], "use `fullbore prune REPO`"),
    (
        &["export-tar"],
        "use `fullbore export REPO@BACKUP --to FILE.tar.zst`",
    ),
    (
        &["copy", "sync"],
        "use `fullbore copy-backup REPO@BACKUP --to DIR`",
    ),
    (
        &["annotate", "rename"],
        "use `fullbore tag REPO@BACKUP KEY=VALUE`",
    ),
    (&["recreate", "rebuild-index"], "use `fullbore repair REPO`"),
    (
        &["archive-push", "archive-get", "wal-push", "wal-fetch"],
        "WAL is archived by the server's own archive_command; what a backup needs of it `fullbore backup postgres://… --to REPO` brings along",
    ),
    (
        &["unlock", "break-lock"],
        "no lock outlives its process: the next `fullbore backup` clears up",
    ),
];

/// Options of those programs that no command here has, or that the given command does not have.
const OPTIONS: [(&[&str], &str); 7] = [
    (
        &["--repo", "--repository", "--repo1-path", "--stanza"],
        "the repository stands by itself, as in `fullbore list REPO`, or behind --to, as in `fullbore backup PATH --to REPO`",
    ),
    (
        &["--target", "--pgdata"],
        "use --to DIR, as in `fullbore restore REPO --to DIR`",
    ),
    (
        &["--read-data", "--verify-data"],
        "use --data, as in `fullbore verify REPO --data`",
    ),
    (
        &["--include"],
        "say PATH by itself, as in `fullbore restore REPO --to DIR PATH`",
    ),
    (&["--prune"], "run `fullbore prune REPO` behind it"),
    (
        &[
            "--keep-last",
            "--keep-hourly",
            "--keep-daily",
            "--keep-weekly",
            "--keep-monthly",
            "--keep-yearly",
            "--keep-within",
        ],
        "`fullbore forget REPO` takes it; `fullbore prune REPO` then frees the space",
    ),
    (
        &["--verbose", "-v"],
        "--json says how far a run is; `fullbore diff REPO` says what is new in the last backup, `fullbore show REPO` what it lacks",
    ),
];

/// Parses the arguments of this process. A command of another program is answered with the equivalent here; for all other
/// errors clap prints its message and ends the process.
///
/// # Errors
/// [`Kind::Usage`].
pub(super) fn parse() -> Result<Cli> {
    let words = profile::effective_words()?;
    let parsed = help::program().try_get_matches_from(words);
    let parsed = parsed.and_then(|found| Cli::from_arg_matches(&found));
    parsed.map_err(|error| answer(&error).unwrap_or_else(|| error.exit()))
}

fn answer(error: &clap::Error) -> Option<Error> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        _ => None,
    };
    let known = |habits: &[(&[&str], &'static str)], word: &str| {
        habits
            .iter()
            .find(|(words, _)| words.contains(&word))
            .map(|(_, instead)| *instead)
    };
    if let Some(word) = text(ContextKind::InvalidSubcommand) {
        let instead = known(&HABITS, word)?;
        return Some(
            Error::new(
                ErrorKind::Usage,
                format!("there is no command {word:?} here"),
            )
            .hint(instead),
        );
    }
    // Other errors are about arguments that exist.
    let word =
        text(ContextKind::InvalidArg).filter(|_| error.kind() == ClapErrorKind::UnknownArgument)?;
    let instead = known(&OPTIONS, word)?;
    Some(Error::new(ErrorKind::Usage, format!("there is no option {word} here")).hint(instead))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[test]
    fn words_of_other_programs_are_answered_with_commands_that_there_are() {
        let is_ours = |name: &str| Cli::command().find_subcommand(name).is_some();
        for word in HABITS.iter().flat_map(|(words, _)| *words) {
            assert!(!is_ours(word), "{word}");
            let error = answer(&Cli::try_parse_from(["fullbore", word, "x"]).unwrap_err()).unwrap();
            let hint = error.hint.unwrap_or_default();
            let named: Vec<_> = hint
                .split("`fullbore ")
                .skip(1)
                .filter_map(|rest| rest.split([' ', '`']).next())
                .collect();
            assert!(
                !named.is_empty() && named.iter().all(|name| is_ours(name)),
                "{word}: {hint}"
            );
        }
    }

    #[test]
    fn options_of_other_programs_are_answered_with_ours() {
        for (command, option) in [
            ("list", "--repo"),
            ("restore", "--target"),
            ("prune", "--keep-daily"),
            ("backup", "-v"),
        ] {
            let line = ["fullbore", command, "x", option, "y"];
            let error = answer(&Cli::try_parse_from(line).unwrap_err()).expect(option);
            assert!(
                error.hint.is_some() && error.what.contains(option),
                "{}",
                error.what
            );
        }
        let wrong =
            Cli::try_parse_from(["fullbore", "forget", "x", "--keep-daily", "y"]).unwrap_err();
        assert!(answer(&wrong).is_none(), "it is an option of that command");
    }

    #[test]
    fn what_is_no_word_of_anybody_is_left_to_the_parser() {
        for line in [
            &["fullbore", "bakcup"][..],
            &["fullbore", "list"],
            &["fullbore", "--help"],
        ] {
            assert!(
                answer(&Cli::try_parse_from(line).unwrap_err()).is_none(),
                "{line:?}"
            );
        }
    }
}
