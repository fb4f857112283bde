//! The words of this process, as clap reads them: the repository that `-r REPO`, FULLBORE_REPOSITORY or a profile names takes its
//! place, and the verbs of other programs become those of this one.

use clap::{Arg, ArgAction, Command};
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    sync::OnceLock,
};

/// Verbs of restic, borg and pgBackRest that mean the same as one of ours.
const ALIASES: [(&str, &str); 7] = [
    ("snapshots", "list"),
    ("ls", "list"),
    ("check", "verify"),
    ("info", "show"),
    ("extract", "restore"),
    ("dump", "cat"),
    ("delete", "forget"),
];

static WORDS: OnceLock<Vec<OsString>> = OnceLock::new();

/// Returns the words of this process as clap has read them, with the name of the program.
pub(super) fn words() -> Vec<OsString> {
    WORDS.get_or_init(|| std::env::args_os().collect()).clone()
}

/// Keeps the words that clap reads, for [`words`].
pub(super) fn keep(words: &[OsString]) {
    let _ = WORDS.set(words.to_vec());
}

/// The words that were typed, read as far as this program has words of its own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct TypedLine {
    /// The words with our verbs and without `-r REPO`; the first is the name of the program.
    pub(super) words: Vec<OsString>,
    /// The verb that was typed, and ours.
    pub(super) alias: Option<(&'static str, &'static str)>,
    /// `-r REPO`.
    pub(super) repository: Option<OsString>,
}

/// A word of the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WordRole {
    /// An option, or its value.
    Option,
    Verb,
    Positional,
}

/// Reads the words of a process.
pub(super) fn read(words: Vec<OsString>, cli: &Command) -> TypedLine {
    let (words, repository) = without_repository(words);
    let (words, alias) = without_alias(words, cli);
    TypedLine {
        words,
        alias,
        repository,
    }
}

/// Takes `-r REPO` out of the words.
fn without_repository(words: Vec<OsString>) -> (Vec<OsString>, Option<OsString>) {
    let mut rest = Vec::with_capacity(words.len());
    let mut repository = None;
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let bytes = word.as_bytes();
        if bytes == b"--" {
            rest.push(word);
            rest.extend(words);
            break;
        }
        let joined = [&b"--repository="[..], b"-r="]
            .iter()
            .find_map(|option| bytes.strip_prefix(*option));
        let glued = bytes.strip_prefix(b"-r").filter(|value| !value.is_empty());
        match joined.or(glued) {
            Some(value) => repository = Some(OsStr::from_bytes(value).to_owned()),
            None if bytes == b"-r" || bytes == b"--repository" => match words.next() {
                Some(value) => repository = Some(value),
                // clap says that a value is missing.
                None => rest.push(word),
            },
            None => rest.push(word),
        }
    }
    (rest, repository)
}

/// Replaces a verb of another program, unless this one has it.
fn without_alias(
    mut words: Vec<OsString>,
    cli: &Command,
) -> (Vec<OsString>, Option<(&'static str, &'static str)>) {
    let is_verb = |(_, role): &(usize, WordRole)| *role == WordRole::Verb;
    let Some((at, _)) = roles(&words, cli).1.into_iter().find(is_verb) else {
        return (words, None);
    };
    if cli.find_subcommand(&words[at]).is_some() {
        return (words, None);
    }
    let Some((alias, verb)) = ALIASES.iter().find(|(alias, _)| words[at] == *alias) else {
        return (words, None);
    };
    // `info` of a repository lists its backups, as pgBackRest and borg do.
    let names_backup = words[at + 1..]
        .iter()
        .any(|word| word.as_bytes().contains(&b'@'));
    let verb = match *verb {
        "show" if !names_backup => "list",
        verb => verb,
    };
    words[at] = verb.into();
    (words, Some((alias, verb)))
}

/// Puts the repository where the command expects it: always if it `is_meant`, else where the words name no other.
pub(super) fn stand_in(
    words: &mut Vec<OsString>,
    repository: &OsStr,
    is_meant: bool,
    cli: &Command,
) {
    let (command, roles) = roles(words, cli);
    let verb = roles.iter().rfind(|(_, role)| *role == WordRole::Verb);
    let Some((verb, _)) = verb else { return };
    let takes_option = command.get_arguments().any(|arg| {
        arg.get_long() == Some("to")
            && arg
                .get_value_names()
                .is_some_and(|names| names[0] == "DEST")
    });
    let mut positionals = command.get_positionals();
    let first = positionals.next();
    let is_copy = command.get_name() == "copy";
    let takes_positional = first.is_some_and(is_repository) || is_copy;
    if !takes_positional && takes_option {
        let is_to = |word: &OsString| word == "--to" || word.as_bytes().starts_with(b"--to=");
        if is_meant || !words.iter().any(is_to) {
            let to = [OsStr::new("--to="), repository].into_iter().collect();
            words.insert(verb + 1, to);
        }
        return;
    }
    if !takes_positional {
        return;
    }
    let wanted = 1 + positionals.filter(|arg| arg.is_required_set()).count();
    let given: Vec<usize> = roles
        .iter()
        .filter(|(_, role)| *role == WordRole::Positional)
        .map(|(at, _)| *at)
        .collect();
    let named = given
        .first()
        .filter(|at| words[**at].as_bytes().starts_with(b"@"));
    let takes_backup = is_copy
        || first
            .and_then(Arg::get_value_names)
            .is_some_and(|names| names[0].ends_with("[@BACKUP]"));
    match named {
        Some(at) if takes_backup => {
            words[*at] = [repository, &words[*at]].into_iter().collect();
        }
        // A directory that is missing is not meant to be the repository.
        _ if is_copy && !is_meant => {}
        _ if is_meant || named.is_some() || given.len() < wanted => {
            words.insert(verb + 1, repository.to_owned());
        }
        _ => {}
    }
}

fn is_repository(arg: &Arg) -> bool {
    arg.get_value_names()
        .is_some_and(|names| names[0].starts_with("REPO"))
}

/// Returns the command that the words call, and the role of each word behind the name of the program.
fn roles<'a>(words: &[OsString], cli: &'a Command) -> (&'a Command, Vec<(usize, WordRole)>) {
    let mut command = cli;
    let mut roles = Vec::new();
    let mut is_value = false;
    let mut is_rest = false;
    for (at, word) in words.iter().enumerate().skip(1) {
        let role = if std::mem::take(&mut is_value) {
            WordRole::Option
        } else if !is_rest && word.len() > 1 && word.as_bytes()[0] == b'-' {
            is_rest = word == "--";
            is_value = wants_value(word, command, cli);
            WordRole::Option
        } else if !is_rest && command.has_subcommands() {
            command = command.find_subcommand(word).unwrap_or(command);
            WordRole::Verb
        } else {
            WordRole::Positional
        };
        roles.push((at, role));
    }
    (command, roles)
}

/// Returns whether the next word is the value of an option.
fn wants_value(word: &OsStr, command: &Command, cli: &Command) -> bool {
    let Some(text) = word.to_str() else {
        return false;
    };
    let arguments = || command.get_arguments().chain(cli.get_arguments());
    let takes = |arg: &Arg| matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    match text.strip_prefix("--") {
        Some(long) => arguments().any(|arg| arg.get_long() == Some(long) && takes(arg)),
        // Of several letters in one word, only the last one may take the next word.
        None => {
            let letters: Vec<char> = text.chars().skip(1).collect();
            let first = letters.iter().position(|letter| {
                arguments().any(|arg| arg.get_short() == Some(*letter) && takes(arg))
            });
            first.is_some_and(|first| first + 1 == letters.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Cli;
    use clap::CommandFactory;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    fn read_line(line: &str, standing: Option<&str>) -> String {
        let cli = Cli::command();
        let mut read = read(words(line), &cli);
        let is_meant = read.repository.is_some();
        if let Some(repository) = read.repository.or(standing.map(Into::into)) {
            stand_in(&mut read.words, &repository, is_meant, &cli);
        }
        let words: Vec<_> = read
            .words
            .iter()
            .map(|word| word.to_str().unwrap())
            .collect();
        words.join(" ")
    }

    #[test]
    fn the_repository_of_an_option_takes_its_place() {
        for (line, read) in [
            ("f -r R list", "f list R"),
            ("f list -rR etc", "f list R etc"),
            (
                "f --repository=R restore @2d --to d etc",
                "f restore R@2d --to d etc",
            ),
            (
                "f -r R -q list --host h @latest",
                "f -q list --host h R@latest",
            ),
            ("f -r R diff @a @b", "f diff R@a @b"),
            ("f -r R backup -e x /srv", "f backup --to=R -e x /srv"),
            ("f -r R forget 2026", "f forget R 2026"),
            ("f -r R find -j", "f find R -j"),
            ("f -r R key list", "f key list R"),
            ("f -r R copy T", "f copy R T"),
            ("f -r R copy @2d T", "f copy R@2d T"),
            ("f list -- -r", "f list -- -r"),
            ("f -r R man", "f man"),
        ] {
            assert_eq!(read_line(line, None), read);
        }
    }

    #[test]
    fn the_repository_of_the_environment_is_used_where_none_is_given() {
        for (line, read) in [
            ("f list", "f list R"),
            ("f list other", "f list other"),
            ("f list @2d", "f list R@2d"),
            ("f find *.conf", "f find R *.conf"),
            ("f find other *.conf", "f find other *.conf"),
            ("f backup /srv", "f backup --to=R /srv"),
            ("f copy @2d T", "f copy R@2d T"),
            ("f copy /srv", "f copy /srv"),
            ("f backup /srv --to x", "f backup /srv --to x"),
            ("f -r T list", "f list T"),
        ] {
            assert_eq!(read_line(line, Some("R")), read);
        }
    }

    #[test]
    fn verbs_of_other_programs_become_ours() {
        for (line, verb) in [
            ("f snapshots R", "f list R"),
            ("f --json ls R@latest", "f --json list R@latest"),
            ("f info R", "f list R"),
            ("f info R@latest", "f show R@latest"),
            ("f extract R --to d", "f restore R --to d"),
            ("f list snapshots", "f list snapshots"),
        ] {
            assert_eq!(read_line(line, None), verb);
        }
        let cli = Cli::command();
        for (alias, verb) in ALIASES {
            assert!(cli.find_subcommand(alias).is_none(), "{alias}");
            assert!(cli.find_subcommand(verb).is_some(), "{verb}");
        }
    }
}
