//! The lines of a session: typed on a terminal, with history and completion, or read from a pipe.

use super::{
    commands::COMMANDS,
    place::{BackupPlace, is_directory},
    words::{quoted, split_open},
};
use fullbore_format::{
    entry::split,
    error::{Error, Result},
};
use rustyline::{
    CompletionType, Config, Context, Editor, Helper,
    completion::{Completer, Pair},
    error::ReadlineError,
    highlight::Highlighter,
    hint::Hinter,
    history::MemHistory,
    validate::Validator,
};
use std::io::{self, BufRead, IsTerminal};

/// The most names that are offered.
const MOST_OFFERED: usize = 1000;

/// Where lines come from.
pub(super) enum LineReader {
    Terminal(Box<Editor<SessionHelper, MemHistory>>),
    Pipe,
}

impl LineReader {
    /// Lines are typed if standard input and standard output are a terminal.
    pub(super) fn new(place: BackupPlace) -> Result<Self> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Ok(Self::Pipe);
        }
        let config = Config::builder()
            .completion_type(CompletionType::List)
            .build();
        let editor = Editor::with_history(config, MemHistory::new());
        let mut editor = editor.map_err(failed)?;
        editor.set_helper(Some(SessionHelper { place }));
        Ok(Self::Terminal(Box::new(editor)))
    }

    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal(_))
    }

    /// Returns the next line; `None` at the end.
    pub(super) fn next(&mut self, place: &BackupPlace, prompt: &str) -> Result<Option<Vec<u8>>> {
        let editor = match self {
            Self::Pipe => return piped_line(),
            Self::Terminal(editor) => editor,
        };
        if let Some(helper) = editor.helper_mut() {
            helper.place = place.clone();
        }
        loop {
            match editor.readline(prompt) {
                Ok(line) => {
                    // A line that cannot be kept is not in the history.
                    let _ = editor.add_history_entry(&line);
                    return Ok(Some(line.into_bytes()));
                }
                Err(ReadlineError::Interrupted) => {}
                Err(ReadlineError::Eof) => return Ok(None),
                Err(error) => return Err(failed(error)),
            }
        }
    }
}

fn piped_line() -> Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let read = io::stdin().lock().read_until(b'\n', &mut line);
    let read = read.map_err(|error| Error::io("could not read standard input", error))?;
    if line.ends_with(b"\n") {
        line.pop();
    }
    Ok((read > 0).then_some(line))
}

fn failed(error: ReadlineError) -> Error {
    Error::io("could not read from the terminal", io::Error::other(error))
}

/// Completes commands and paths.
pub(super) struct SessionHelper {
    place: BackupPlace,
}

impl Completer for SessionHelper {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        pos: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let typed = &line[..pos];
        let start = word_start(typed);
        let (words, _) = split_open(&typed.as_bytes()[start..]);
        let word = words.into_iter().next().unwrap_or_default().text;
        let offered = match typed[..start].trim().is_empty() {
            true => commands(&word),
            // Damage is reported by the command that meets it.
            false => self.paths(&word).unwrap_or_default(),
        };
        Ok((start, offered))
    }
}

/// The begin of the last word. A blank in quotes or behind a `\` is part of it.
fn word_start(typed: &str) -> usize {
    let blanks = typed.char_indices().filter(|(_, c)| *c == ' ');
    let starts = blanks.map(|(place, _)| place + 1);
    let is_start = |start: &usize| split_open(&typed.as_bytes()[..*start]).1.is_none();
    let is_blank = |start: &usize| !typed[..*start].ends_with("\\ ");
    starts.rev().filter(is_start).find(is_blank).unwrap_or(0)
}

fn commands(begin: &[u8]) -> Vec<Pair> {
    let known = COMMANDS
        .iter()
        .filter(|(name, ..)| name.as_bytes().starts_with(begin));
    let pair = |name: &&str| Pair {
        display: (*name).to_owned(),
        replacement: format!("{name} "),
    };
    known.map(|(name, ..)| pair(name)).collect()
}

impl SessionHelper {
    fn paths(&self, word: &[u8]) -> Result<Vec<Pair>> {
        let end = word.iter().rposition(|byte| *byte == b'/');
        let (above, begin) = word.split_at(end.map_or(0, |end| end + 1));
        let directory = self.place.path(above)?;
        let mut offered = Vec::new();
        for child in self.place.archive.children(&directory) {
            let child = child?;
            let name = split(&child.path).1;
            // A name that is not UTF-8 cannot be typed.
            let Ok(name) = std::str::from_utf8(name) else {
                continue;
            };
            if !name.as_bytes().starts_with(begin) || offered.len() >= MOST_OFFERED {
                continue;
            }
            let slash = if is_directory(&child) { "/" } else { "" };
            let above = quoted(&String::from_utf8_lossy(above));
            offered.push(Pair {
                display: format!("{}{slash}", fullbore_format::text::name(name.as_bytes())),
                replacement: format!("{above}{}{slash}", quoted(name)),
            });
        }
        Ok(offered)
    }
}

impl Helper for SessionHelper {}
impl Highlighter for SessionHelper {}
impl Validator for SessionHelper {}
impl Hinter for SessionHelper {
    type Hint = String;
}

#[cfg(test)]
mod tests {
    use super::word_start;

    #[test]
    fn the_last_word_begins_behind_a_blank_that_is_not_quoted() {
        for (line, start) in [
            ("ad", 0),
            ("add ", 4),
            ("add a b", 6),
            ("add a\\ b", 4),
            ("add 'a b", 4),
        ] {
            assert_eq!(word_start(line), start, "{line}");
        }
    }
}
