//! The words of this process before clap parses them.
//!
//! The repository that `-r REPO`, FULLBORE_REPOSITORY or a profile names takes its place, and the verbs of other programs become
//! those of this one.

use super::{
    command_words::{CommandWords, FoundOption, LinePart, inner_command},
    rsync_words,
};
use clap::{Arg, Command};
use std::{
    collections::BTreeSet,
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

/// Returns whether the word is a verb of another program.
pub(super) fn is_alias(word: &OsStr) -> bool {
    ALIASES.iter().any(|(alias, _)| word == *alias)
}

static WORDS: OnceLock<Vec<OsString>> = OnceLock::new();

static OWN_PROGRAM: OnceLock<Command> = OnceLock::new();
static WHOLE_PROGRAM: OnceLock<Command> = OnceLock::new();
static BUILD_PROGRAM: OnceLock<fn() -> Command> = OnceLock::new();

/// Keeps the program as far as the words of this process need it, and what builds all of it.
pub(super) fn keep_program(own: Command, build: fn() -> Command) -> &'static Command {
    let _ = BUILD_PROGRAM.set(build);
    OWN_PROGRAM.get_or_init(|| own)
}

/// Returns the whole program as clap knows it, built: without commands if clap has not read the
/// words of this process.
pub(super) fn program() -> &'static Command {
    static WITHOUT_COMMANDS: OnceLock<Command> = OnceLock::new();
    match BUILD_PROGRAM.get() {
        Some(build) => WHOLE_PROGRAM.get_or_init(build),
        None => WITHOUT_COMMANDS.get_or_init(|| Command::new("fullbore")),
    }
}

/// Returns the words of this process, read.
pub(super) fn own_words() -> CommandWords<'static> {
    let program = OWN_PROGRAM.get().unwrap_or_else(|| program());
    CommandWords::read(program, words().into_iter().skip(1))
}

/// Returns the words of this process as clap has read them, with the name of the program.
pub(super) fn words() -> Vec<OsString> {
    WORDS.get_or_init(|| std::env::args_os().collect()).clone()
}

/// Keeps the words that clap reads, for [`words`].
pub(super) fn keep(words: &[OsString]) {
    let _ = WORDS.set(words.to_vec());
}

/// The words that were typed, read as far as this program has words of its own.
///
/// Errors are left to clap: a word that is not understood here stays where it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct TypedLine {
    /// The words with our verbs, without the options that name a repository or a profile; the first
    /// is the name of the program.
    pub(super) words: Vec<OsString>,
    /// The verb that was typed, and ours.
    pub(super) alias: Option<(&'static str, &'static str)>,
    /// `-r REPO`.
    pub(super) repository: Option<OsString>,
    /// `--profile NAME`.
    pub(super) profile: Option<OsString>,
    /// `--config FILE`.
    pub(super) config: Option<OsString>,
    /// The names of the command, from the outside to the inside: `key`, `list`.
    pub(super) command: Vec<String>,
    /// The place in `words` behind the name of the command.
    pub(super) begin: usize,
    /// Options that are given, by their clap ids.
    pub(super) given: BTreeSet<String>,
    /// Places in `words` of words that are not options.
    pub(super) positionals: Vec<usize>,
}

impl TypedLine {
    /// Reads the words of a process. `program` must be built, so that commands know the global
    /// options.
    pub(super) fn read(program: &Command, words: Vec<OsString>) -> Self {
        let mut words = words.into_iter();
        let mut line = Self::default();
        line.words.extend(words.next());
        line.begin = line.words.len();
        let words = line.with_our_verb(words.collect(), program);
        let words = rsync_words::without_habits(program, words);
        for part in CommandWords::read(program, words).parts {
            line.take(part);
        }
        line
    }

    /// Returns the words with our verb for one of another program, unless this one has it.
    fn with_our_verb(&mut self, mut words: Vec<OsString>, program: &Command) -> Vec<OsString> {
        let parts = CommandWords::read(program, words.clone()).parts;
        let mut place = 0;
        for part in parts {
            match part {
                LinePart::Word(word) => {
                    if let Some(verb) = self.our_verb(&word, &words[place + 1..]) {
                        words[place] = verb.into();
                    }
                    break;
                }
                LinePart::Options { words, .. } => place += words.len(),
                LinePart::Verb(_) | LinePart::End => break,
            }
        }
        words
    }

    fn our_verb(&mut self, word: &OsStr, rest: &[OsString]) -> Option<&'static str> {
        let (alias, verb) = ALIASES.iter().find(|(alias, _)| word == *alias)?;
        // `info` of a repository lists its backups, as pgBackRest and borg do.
        let names_backup = rest.iter().any(|word| word.as_bytes().contains(&b'@'));
        let verb = match *verb {
            "show" if !names_backup => "list",
            verb => verb,
        };
        self.alias = Some((alias, verb));
        Some(verb)
    }

    fn take(&mut self, part: LinePart<'_>) {
        match part {
            LinePart::Verb(command) => {
                self.command.push(command.get_name().to_owned());
                self.words.push(command.get_name().into());
                self.begin = self.words.len();
            }
            LinePart::Word(word) => {
                self.positionals.push(self.words.len());
                self.words.push(word);
            }
            LinePart::Options { found, words } => self.take_options(&found, words),
            LinePart::End => self.words.push("--".into()),
        }
    }

    /// Takes options. The value of one that names a repository or a profile is kept apart.
    fn take_options(&mut self, found: &[FoundOption<'_>], words: Vec<OsString>) {
        let ids = found.iter().map(|option| option.id().to_owned());
        self.given.extend(ids);
        let Some((last, others)) = found.split_last() else {
            return self.words.extend(words);
        };
        let named = match last.id() {
            "profile" => Some(&mut self.profile),
            "config" => Some(&mut self.config),
            "stand_in" => Some(&mut self.repository),
            _ => None,
        };
        let (Some(named), Some(value)) = (named, &last.value) else {
            // If a value is missing, clap says so.
            return self.words.extend(words);
        };
        *named = Some(value.clone());
        let letters: String = others
            .iter()
            .filter_map(|option| option.arg.get_short())
            .collect();
        if !letters.is_empty() {
            self.words.push(format!("-{letters}").into());
        }
    }

    /// Puts the repository where the command expects it: always if it `is_meant`, else where the
    /// words name no other.
    pub(super) fn stand_in(self, repository: &OsStr, is_meant: bool, program: &Command) -> Self {
        let Some(command) = inner_command(program, &self.command) else {
            return self;
        };
        let mut words = self.words.clone();
        match RepositoryPlace::of(command) {
            Some(RepositoryPlace::Option) if is_meant || !self.given.contains("to") => {
                let word = [OsStr::new("--to="), repository].into_iter().collect();
                words.insert(self.begin, word);
            }
            Some(RepositoryPlace::Option) => {}
            Some(RepositoryPlace::Word { wanted, has_backup }) => {
                let first = self.positionals.first();
                let named = first.filter(|offset| words[**offset].as_bytes().starts_with(b"@"));
                match named {
                    // `@ID` alone names a backup of the repository that stands in.
                    Some(at) if has_backup => {
                        words[*at] = [repository, &words[*at]].into_iter().collect();
                    }
                    _ if is_meant || named.is_some() || self.positionals.len() < wanted => {
                        words.insert(self.begin, repository.to_owned());
                    }
                    _ => {}
                }
            }
            None => {}
        }
        // The new word shifts the offsets of all others.
        let read = Self::read(program, words);
        Self {
            alias: self.alias,
            repository: self.repository,
            profile: self.profile,
            config: self.config,
            ..read
        }
    }
}

/// Where a command takes its repository.
enum RepositoryPlace {
    /// `--to DEST`.
    Option,
    /// The first word, which may end in `@BACKUP`, of so many that are required.
    Word { wanted: usize, has_backup: bool },
}

impl RepositoryPlace {
    fn of(command: &Command) -> Option<Self> {
        if command.get_name() == "copy" {
            // A directory that is missing is not meant to be the repository.
            let (wanted, has_backup) = (0, true);
            return Some(Self::Word { wanted, has_backup });
        }
        let value_name = |arg: &Arg| arg.get_value_names().map(|names| names[0].to_string());
        let mut positionals = command.get_positionals();
        let first = positionals.next().and_then(value_name);
        if let Some(first) = first.filter(|name| name.starts_with("REPO")) {
            return Some(Self::Word {
                wanted: 1 + positionals.filter(|arg| arg.is_required_set()).count(),
                has_backup: first.ends_with("[@BACKUP]"),
            });
        }
        let is_to = |arg: &&Arg| arg.get_long() == Some("to");
        let target = command.get_arguments().find(is_to).and_then(value_name);
        (target? == "DEST").then_some(Self::Option)
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

    fn program() -> Command {
        let mut program = Cli::command();
        program.build();
        program
    }

    fn read(line: &str) -> TypedLine {
        TypedLine::read(&program(), words(line))
    }

    fn read_line(line: &str, standing: Option<&str>) -> String {
        let mut read = read(line);
        let is_meant = read.repository.is_some();
        let repository = read.repository.clone().or(standing.map(Into::into));
        if let Some(repository) = repository {
            read = read.stand_in(&repository, is_meant, &program());
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
            ("f list -qr R", "f list R -q"),
            ("f list R -r", "f list R -r"),
            (
                "f -r R backup --tag -r /srv",
                "f backup --to=R --tag -r /srv",
            ),
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
        let cli = program();
        for (alias, verb) in ALIASES {
            assert!(cli.find_subcommand(alias).is_none(), "{alias}");
            assert!(cli.find_subcommand(verb).is_some(), "{verb}");
        }
    }
    #[test]
    fn options_that_name_a_profile_are_taken_out_and_all_others_are_known() {
        let line = read("fullbore -P web backup --exclude *.tmp -qx --tag=a=b /srv -- -odd");
        assert_eq!(line.profile.as_deref(), Some(OsStr::new("web")));
        assert_eq!(
            line.words.join(OsStr::new(" ")),
            "fullbore backup --exclude *.tmp -qx --tag=a=b /srv -- -odd"
        );
        assert_eq!((line.command, line.begin), (vec!["backup".into()], 2));
        for id in ["exclude", "quiet", "one_file_system", "tag"] {
            assert!(line.given.contains(id), "{id}");
        }
        assert_eq!(line.positionals, [6, 8]);
    }

    #[test]
    fn a_profile_may_stand_in_any_way_that_options_may() {
        for words in [
            "-Pweb",
            "-P web",
            "--profile web",
            "--profile=web",
            "-P=web",
        ] {
            for line in [
                format!("fullbore {words} list"),
                format!("fullbore list {words}"),
            ] {
                let line = read(&line);
                assert_eq!(line.profile.as_deref(), Some(OsStr::new("web")), "{words}");
                assert_eq!(line.words, ["fullbore", "list"], "{words}");
                assert_eq!(line.begin, 2, "{words}");
            }
        }
        let line = read("fullbore key list --config /a.toml");
        assert_eq!((line.command.len(), line.begin), (2, 3));
        assert_eq!(line.config.as_deref(), Some(OsStr::new("/a.toml")));
    }

    #[test]
    fn letters_before_a_profile_and_a_missing_name_are_left_to_clap() {
        let line = read("fullbore list -qvP web R");
        assert_eq!(line.profile.as_deref(), Some(OsStr::new("web")));
        assert_eq!(line.words, ["fullbore", "list", "-qv", "R"]);
        let line = read("fullbore list R -P");
        assert_eq!(line.profile, None);
        assert_eq!(line.words, ["fullbore", "list", "R", "-P"]);
    }
}
