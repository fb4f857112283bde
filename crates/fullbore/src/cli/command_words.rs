//! The one reader of words: which words of a command line are options, values, names of commands, or none of these.
//!
//! All facts come from clap. Words behind `--` are no options. Errors are left to clap: a word that
//! is not understood here stays as it is.

use clap::{Arg, Command};
use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
};

/// An option in a word, and its value if one was given.
#[derive(Debug, Clone)]
pub(super) struct FoundOption<'a> {
    pub(super) arg: &'a Arg,
    pub(super) value: Option<OsString>,
}

impl FoundOption<'_> {
    pub(super) fn id(&self) -> &str {
        self.arg.get_id().as_str()
    }
}

/// A part of a command line.
#[derive(Debug, Clone)]
pub(super) enum LinePart<'a> {
    /// The name of a command.
    Verb(&'a Command),
    /// A word that is no option.
    Word(OsString),
    /// Options in one word, and the words as they were typed: two if the last one has its value apart.
    Options {
        found: Vec<FoundOption<'a>>,
        words: Vec<OsString>,
    },
    /// `--`
    End,
}

impl LinePart<'_> {
    /// Returns the words of this part.
    pub(super) fn into_words(self) -> Vec<OsString> {
        match self {
            Self::Verb(command) => vec![command.get_name().into()],
            Self::Word(word) => vec![word],
            Self::Options { words, .. } => words,
            Self::End => vec!["--".into()],
        }
    }
}

/// The words of a command line, without the name of the program.
#[derive(Debug, Clone)]
pub(super) struct CommandWords<'a> {
    program: &'a Command,
    /// The inner command that the words name, or the program.
    command: &'a Command,
    pub(super) parts: Vec<LinePart<'a>>,
}

impl<'a> CommandWords<'a> {
    /// Reads the words behind the name of the program. `program` must be built, so that commands
    /// know the global options.
    pub(super) fn read(program: &'a Command, words: impl IntoIterator<Item = OsString>) -> Self {
        let mut read = Self {
            program,
            command: program,
            parts: Vec::new(),
        };
        let mut words = words.into_iter();
        let mut may_be_verb = true;
        while let Some(word) = words.next() {
            let is_option = word.len() > 1 && word.as_bytes().starts_with(b"-");
            if word == "--" {
                read.parts.push(LinePart::End);
                // All words behind it are values, `--` too.
                read.parts.extend(words.by_ref().map(LinePart::Word));
            } else if is_option {
                read.parts
                    .push(options_part(read.command, word, &mut words));
            } else {
                let inner = read.command.find_subcommand(&word);
                match inner.filter(|_| may_be_verb) {
                    Some(inner) => {
                        read.command = inner;
                        read.parts.push(LinePart::Verb(inner));
                    }
                    None => {
                        may_be_verb = false;
                        read.parts.push(LinePart::Word(word));
                    }
                }
            }
        }
        read
    }

    /// Returns the options in their order.
    fn options(&self) -> impl Iterator<Item = &FoundOption<'a>> {
        self.parts.iter().flat_map(|part| match part {
            LinePart::Options { found, .. } => &found[..],
            _ => &[],
        })
    }

    /// Returns whether the words name this command.
    pub(super) fn is_of(&self, command: &str) -> bool {
        self.command.get_name() == command
    }

    /// Returns whether the option with this clap id is given.
    pub(super) fn has(&self, id: &str) -> bool {
        self.options().any(|option| option.id() == id)
    }

    /// Returns the last value of the option with this clap id.
    pub(super) fn value(&self, id: &str) -> Option<&OsStr> {
        let values = self.options().filter(|option| option.id() == id);
        values.filter_map(|option| option.value.as_deref()).last()
    }

    /// Returns the place of a word that is no option.
    pub(super) fn place_of(&self, wanted: &OsStr) -> Option<usize> {
        let mut place = 0;
        for part in &self.parts {
            match part {
                LinePart::Word(word) if word == wanted => return Some(place),
                LinePart::Options { words, .. } => place += words.len(),
                LinePart::Verb(_) | LinePart::Word(_) | LinePart::End => place += 1,
            }
        }
        None
    }

    /// Returns the first given option of a group.
    pub(super) fn first_of(&self, group: &str) -> Option<&'a Arg> {
        let ids = self.group(group);
        let mut options = self.options();
        options
            .find(|option| ids.contains(option.id()))
            .map(|option| option.arg)
    }

    /// Returns the ids of the options in a group of the program or of the command.
    fn group(&self, name: &str) -> BTreeSet<&'a str> {
        let groups = [self.program, self.command].into_iter();
        groups
            .flat_map(Command::get_groups)
            .filter(|group| group.get_id() == name)
            .flat_map(|group| group.get_args().map(clap::Id::as_str))
            .collect()
    }

    /// Leaves out the options of some groups, with their values.
    pub(super) fn without_groups(self, groups: &[&str]) -> Self {
        let ids: BTreeSet<&str> = groups.iter().flat_map(|name| self.group(name)).collect();
        self.without_ids(&ids)
    }

    /// Leaves out an option, with its value.
    pub(super) fn without(self, id: &str) -> Self {
        self.without_ids(&BTreeSet::from([id]))
    }

    fn without_ids(mut self, ids: &BTreeSet<&str>) -> Self {
        for part in &mut self.parts {
            let LinePart::Options { found, words } = part else {
                continue;
            };
            let count = found.len();
            found.retain(|option| !ids.contains(option.id()));
            if found.len() < count {
                *words = typed_words(found);
            }
        }
        self
    }

    /// Gives an option another value, if it has one.
    pub(super) fn with_value(mut self, id: &str, value: &OsStr) -> Self {
        for part in &mut self.parts {
            let LinePart::Options { found, words } = part else {
                continue;
            };
            if let Some(option) = found.iter_mut().find(|option| option.id() == id) {
                option.value = option.value.is_some().then(|| value.to_owned());
                *words = typed_words(found);
            }
        }
        self
    }

    /// Replaces words that are no options, also those behind `--`.
    pub(super) fn with_places(mut self, replace: impl Fn(OsString) -> OsString) -> Self {
        for part in &mut self.parts {
            if let LinePart::Word(word) = part {
                *word = replace(std::mem::take(word));
            }
        }
        self
    }

    /// Replaces the words that are no options, in their order.
    pub(super) fn replace_places(&mut self, places: impl IntoIterator<Item = OsString>) {
        let mut places = places.into_iter();
        for part in &mut self.parts {
            if let LinePart::Word(word) = part {
                *word = places.next().unwrap_or_else(|| std::mem::take(word));
            }
        }
    }

    /// Returns the words, with `added` options behind all others.
    pub(super) fn into_words_with(mut self, added: &[OsString]) -> Vec<OsString> {
        let mut parts = self.parts.iter();
        let end = parts.position(|part| matches!(part, LinePart::End));
        let values = self.parts.split_off(end.unwrap_or(self.parts.len()));
        let options = self.parts.into_iter().flat_map(LinePart::into_words);
        let values = values.into_iter().flat_map(LinePart::into_words);
        options.chain(added.iter().cloned()).chain(values).collect()
    }
}

/// Reads the options in a word, and takes the next word if that is the value of the last option.
fn options_part<'a>(
    command: &'a Command,
    word: OsString,
    rest: &mut impl Iterator<Item = OsString>,
) -> LinePart<'a> {
    let mut found = find_options(command, &word);
    let mut words = vec![word];
    if let Some(last) = found.last_mut() {
        // An optional value, as that of --overwrite, is never apart.
        let is_apart = last.value.is_none()
            && last.arg.get_action().takes_values()
            && !last.arg.is_require_equals_set();
        if is_apart {
            last.value = rest.next();
            words.extend(last.value.clone());
        }
    }
    LinePart::Options { found, words }
}

/// Returns options as one word: the long name of one option, or letters.
fn typed_words(found: &[FoundOption<'_>]) -> Vec<OsString> {
    let Some(last) = found.last() else {
        return Vec::new();
    };
    let letters: Option<String> = found.iter().map(|option| option.arg.get_short()).collect();
    let mut word = match (last.arg.get_long(), letters) {
        (Some(long), _) if found.len() == 1 => OsString::from(format!("--{long}")),
        (_, letters) => OsString::from(format!("-{}", letters.unwrap_or_default())),
    };
    if let Some(value) = &last.value {
        word.push("=");
        word.push(value);
    }
    vec![word]
}

/// Returns the options in a word: one after two dashes, or one letter each after one dash.
pub(super) fn find_options<'a>(command: &'a Command, word: &OsStr) -> Vec<FoundOption<'a>> {
    let bytes = word.as_bytes();
    let Some(name) = bytes.strip_prefix(b"--") else {
        return find_letters(command, &bytes[1..]);
    };
    let equals = name.iter().position(|byte| *byte == b'=');
    let long = &name[..equals.unwrap_or(name.len())];
    let value = equals.map(|place| OsString::from_vec(name[place + 1..].to_vec()));
    let arg = command.get_arguments().find(|arg| is_named(arg, long));
    arg.map(|arg| FoundOption { arg, value })
        .into_iter()
        .collect()
}

/// Returns whether an option has this long name.
fn is_named(arg: &Arg, long: &[u8]) -> bool {
    let aliases = arg.get_all_aliases().unwrap_or_default();
    let mut names = arg.get_long().into_iter().chain(aliases);
    names.any(|name| name.as_bytes() == long)
}

/// Returns the options of letters behind one dash, up to the first that is unknown or has a value.
pub(super) fn find_letters<'a>(command: &'a Command, letters: &[u8]) -> Vec<FoundOption<'a>> {
    let mut found = Vec::new();
    for (place, letter) in letters.iter().enumerate() {
        let letter = char::from(*letter);
        let mut args = command.get_arguments();
        let Some(arg) = args.find(|arg| arg.get_short() == Some(letter)) else {
            break;
        };
        let is_valued = arg.get_action().takes_values();
        let rest = Some(&letters[place + 1..]).filter(|rest| is_valued && !rest.is_empty());
        let value = rest.map(|rest| {
            let value = rest.strip_prefix(b"=").unwrap_or(rest);
            OsString::from_vec(value.to_vec())
        });
        found.push(FoundOption { arg, value });
        if is_valued {
            break;
        }
    }
    found
}

/// Returns the command with this path of names; `None` without a name.
pub(super) fn inner_command<'a>(program: &'a Command, names: &[String]) -> Option<&'a Command> {
    let (first, rest) = names.split_first()?;
    let command = program.find_subcommand(first)?;
    rest.iter()
        .try_fold(command, |command, name| command.find_subcommand(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::program;

    fn split(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    fn joined(words: &[OsString]) -> String {
        words.join(OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn options_are_found_by_their_names_and_letters_up_to_the_two_dashes() {
        let program = program();
        let line = "backup -qj2 --to=/a --tag k --to /b -- --to /c -v";
        let words = CommandWords::read(&program, split(line));
        assert_eq!(words.value("to"), Some(OsStr::new("/b")));
        assert_eq!(words.value("workers"), Some(OsStr::new("2")));
        assert!(words.has("quiet") && !words.has("verbose") && words.has("tag"));
        assert_eq!(joined(&words.into_words_with(&[])), line);
    }

    #[test]
    fn an_option_is_taken_out_with_its_value_and_nothing_else() {
        let program = program();
        for (line, rest) in [
            ("verify --workers 2 R", "verify R"),
            ("verify --workers=2 R", "verify R"),
            ("verify -qj2 R", "verify --quiet R"),
            ("verify -j 2 R", "verify R"),
            ("verify R -- --workers 2", "verify R -- --workers 2"),
            ("verify --tag --workers R", "verify --tag --workers R"),
        ] {
            let words = CommandWords::read(&program, split(line));
            let words = words.without("workers").into_words_with(&[]);
            assert_eq!(joined(&words), rest, "{line}");
        }
        let words = CommandWords::read(&program, split("verify R -qj2 -- x"));
        let words = words.with_value("workers", OsStr::new("3"));
        let added = split("--data");
        assert_eq!(
            joined(&words.into_words_with(&added)),
            "verify R -qj=3 --data -- x"
        );
    }

    #[test]
    fn an_optional_value_is_never_the_next_word() {
        let program = program();
        let words = CommandWords::read(&program, split("restore --overwrite R --to d"));
        assert_eq!(words.value("overwrite"), None);
        assert!(
            words
                .parts
                .iter()
                .any(|part| matches!(part, LinePart::Word(word) if word == "R"))
        );
    }
}
