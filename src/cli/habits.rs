//! What other backup programs call things, and what does the same here.
//!
//! Somebody who comes from one of them types its words. The command that is spelled most like such a word, which is what
//! a parser guesses, is another one: `create` is no `restore`.

use super::args::Cli;
use crate::error::{Error, Kind, Result};
use clap::{
    Parser,
    error::{ContextKind, ContextValue},
};

/// Words of restic, borg, rsync, tar, pgBackRest and WAL-G, and what to do instead.
const HABITS: [(&[&str], &str); 14] = [
    (&["init", "stanza-create"], "nothing is to be made first: `fullbore backup PATH --to REPO` makes the repository"),
    (&["create", "backup-push"], "use `fullbore backup PATH --to REPO`"),
    (
        &["snapshots", "info", "archives", "backup-list"],
        "use `fullbore list REPO`, and `fullbore show REPO@BACKUP` for one",
    ),
    (&["ls"], "use `fullbore list REPO@BACKUP`"),
    (&["stats"], "use `fullbore show REPO@BACKUP`"),
    (&["check", "fsck"], "use `fullbore verify REPO`, with --data for every byte"),
    (&["extract", "recover", "dump", "backup-fetch"], "use `fullbore restore REPO@BACKUP --to DIR [PATH]`"),
    (
        &["mount"],
        "nothing is mounted: `fullbore list REPO@BACKUP` shows what is in it, `fullbore restore REPO@BACKUP --to DIR PATH` gets it",
    ),
    (&["delete", "rm", "remove", "expire"], "use `fullbore forget REPO`, and `fullbore prune REPO` to free the space"),
    (&["compact", "cleanup", "gc"], "use `fullbore prune REPO`"),
    (&["export-tar"], "use `fullbore export REPO@BACKUP --to FILE.tar.zst`"),
    (&["copy", "sync"], "use `fullbore copy-backup REPO@BACKUP --to DIR`"),
    (&["annotate", "rename"], "use `fullbore tag REPO@BACKUP KEY=VALUE`"),
    (&["unlock", "break-lock"], "no lock outlives its process: the next `fullbore backup` clears up"),
];

/// Parse the arguments of this process. What is no command here, but one elsewhere, is answered with ours; everything else that
/// clap has to say ends the process.
///
/// # Errors
/// [`Kind::Usage`].
pub(super) fn parse() -> Result<Cli> {
    Cli::try_parse().map_err(|error| answer(&error).unwrap_or_else(|| error.exit()))
}

fn answer(error: &clap::Error) -> Option<Error> {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let (_, instead) = HABITS.iter().find(|(words, _)| words.contains(&word.as_str()))?;
    Some(Error::new(Kind::Usage, format!("there is no command {word:?} here")).hint(*instead))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn words_of_other_programs_are_answered_with_commands_that_there_are() {
        let is_ours = |name: &str| Cli::command().find_subcommand(name).is_some();
        for word in HABITS.iter().flat_map(|(words, _)| *words) {
            assert!(!is_ours(word), "{word}");
            let error = answer(&Cli::try_parse_from(["fullbore", word, "x"]).unwrap_err()).unwrap();
            let hint = error.hint.unwrap_or_default();
            let named: Vec<_> =
                hint.split("`fullbore ").skip(1).filter_map(|rest| rest.split([' ', '`']).next()).collect();
            assert!(!named.is_empty() && named.iter().all(|name| is_ours(name)), "{word}: {hint}");
        }
    }

    #[test]
    fn what_is_no_word_of_anybody_is_left_to_the_parser() {
        for line in [&["fullbore", "bakcup"][..], &["fullbore", "list"], &["fullbore", "--help"]] {
            assert!(answer(&Cli::try_parse_from(line).unwrap_err()).is_none(), "{line:?}");
        }
    }
}
