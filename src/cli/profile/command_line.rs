//! The words of a command line, as far as profiles must know them before clap parses them.
//!
//! Errors are left to clap: a word that is not understood here stays where it is.

use clap::{Arg, Command};
use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
};

/// The command line, without the options that name a profile.
#[derive(Debug, Default)]
pub(super) struct CommandLine {
    /// All other words; the first is the name of the program.
    pub(super) words: Vec<OsString>,
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

impl CommandLine {
    /// Reads the words. `program` must be built, so that commands know the global options.
    pub(super) fn read(program: &Command, words: Vec<OsString>) -> Self {
        let mut line = Self::default();
        let mut command = program;
        let mut are_options_over = false;
        let mut words = words.into_iter();
        line.words.extend(words.next());
        line.begin = line.words.len();
        while let Some(word) = words.next() {
            let text = word.to_string_lossy().into_owned();
            if are_options_over || !text.starts_with('-') || text == "-" {
                let is_first = line.positionals.is_empty() && !are_options_over;
                match command.find_subcommand(&text).filter(|_| is_first) {
                    Some(inner) => {
                        command = inner;
                        line.command.push(inner.get_name().to_owned());
                        line.begin = line.words.len() + 1;
                    }
                    None => line.positionals.push(line.words.len()),
                }
                line.words.push(word);
            } else if text == "--" {
                are_options_over = true;
                line.words.push(word);
            } else {
                line.option(command, word, &mut words);
            }
        }
        line
    }

    /// Takes an option, and the next word if that is its value.
    fn option(
        &mut self,
        command: &Command,
        word: OsString,
        rest: &mut impl Iterator<Item = OsString>,
    ) {
        let found = find_options(command, &word);
        let Some(last) = found.last() else {
            return self.words.push(word);
        };
        let is_valued = last.arg.get_action().takes_values();
        let value = match &last.value {
            None if is_valued => rest.next(),
            value => value.clone(),
        };
        match last.arg.get_id().as_str() {
            "profile" => self.profile = value,
            "config" => self.config = value,
            _ => {
                let is_apart = last.value.is_none();
                self.words.push(word);
                self.words.extend(value.filter(|_| is_apart && is_valued));
            }
        }
        let ids = found.iter().map(|option| option.arg.get_id().to_string());
        self.given.extend(ids);
    }
}

/// An option in a word, and its value if that is in the same word.
struct FoundOption<'a> {
    arg: &'a Arg,
    value: Option<OsString>,
}

/// The options in a word: one after two dashes, or one letter each after one dash.
fn find_options<'a>(command: &'a Command, word: &OsStr) -> Vec<FoundOption<'a>> {
    let bytes = word.as_bytes();
    let Some(name) = bytes.strip_prefix(b"--") else {
        return find_letters(command, &bytes[1..]);
    };
    let equals = name.iter().position(|byte| *byte == b'=');
    let long = &name[..equals.unwrap_or(name.len())];
    let value = equals.map(|at| OsString::from_vec(name[at + 1..].to_vec()));
    let is_named = |arg: &&Arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        let mut names = arg.get_long().into_iter().chain(aliases);
        names.any(|name| name.as_bytes() == long)
    };
    let arg = command.get_arguments().find(is_named);
    arg.map(|arg| FoundOption { arg, value })
        .into_iter()
        .collect()
}

fn find_letters<'a>(command: &'a Command, letters: &[u8]) -> Vec<FoundOption<'a>> {
    let mut found = Vec::new();
    for (at, letter) in letters.iter().enumerate() {
        let letter = char::from(*letter);
        let is_named = |arg: &&Arg| arg.get_short() == Some(letter);
        let Some(arg) = command.get_arguments().find(is_named) else {
            break;
        };
        let rest = letters[at + 1..]
            .strip_prefix(b"=")
            .unwrap_or(&letters[at + 1..]);
        let takes_rest = arg.get_action().takes_values() && !rest.is_empty();
        let value = takes_rest.then(|| OsString::from_vec(rest.to_vec()));
        found.push(FoundOption { arg, value });
        if arg.get_action().takes_values() {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Cli;
    use clap::CommandFactory;

    fn read(line: &str) -> CommandLine {
        let mut program = Cli::command();
        program.build();
        CommandLine::read(&program, line.split(' ').map(OsString::from).collect())
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
}
