//! Colour for the first word of a line: errors, hints, warnings, damage, and what is kept, forgotten or different.
//!
//! All text of the program passes here on its way to a terminal, so that no other room knows of colours.

use clap::ValueEnum;
use std::{
    borrow::Cow,
    env,
    io::{self, IsTerminal, Write},
    sync::atomic::{AtomicU8, Ordering::Relaxed},
};

/// When output has colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Everywhere
    Always,
    /// Nowhere
    Never,
}

const RED: &str = "31";
const GREEN: &str = "32";
const YELLOW: &str = "33";
const CYAN: &str = "36";
const BOLD: &str = "1";

/// The beginnings of lines, and their colours.
const WORDS: [(&str, &str); 20] = [
    ("error:", RED),
    ("hint:", CYAN),
    ("note:", CYAN),
    ("next:", CYAN),
    ("warning:", YELLOW),
    ("WARNING:", YELLOW),
    ("not captured:", YELLOW),
    ("captured, but not as it was:", YELLOW),
    ("damage:", RED),
    ("damaged:", RED),
    ("lost:", RED),
    ("delete:", RED),
    ("keep ", GREEN),
    ("forget ", YELLOW),
    ("+ ", GREEN),
    ("- ", RED),
    ("~ ", YELLOW),
    ("x ", YELLOW),
    ("ACTION ", BOLD),
    ("BACKUP ", BOLD),
];

/// The choice of this process, as a number.
static CHOICE: AtomicU8 = AtomicU8::new(ColorChoice::Auto as u8);

/// Sets when the output of this process has colours.
pub(super) fn set(choice: ColorChoice) {
    CHOICE.store(choice as u8, Relaxed);
}

/// Returns whether text for `stream` has colours.
pub(super) fn is_on(stream: &impl IsTerminal) -> bool {
    let choice = CHOICE.load(Relaxed);
    if choice != ColorChoice::Auto as u8 {
        return choice == ColorChoice::Always as u8;
    }
    let is_set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
    stream.is_terminal() && !is_set("NO_COLOR") && !is_dumb
}

/// Returns a line with its first word in colour.
pub(super) fn painted(line: &str) -> Cow<'_, str> {
    let known = WORDS.iter().find(|(word, _)| line.starts_with(word));
    match known {
        Some((word, color)) => {
            let (word, rest) = line.split_at(word.trim_end().len());
            format!("\x1b[{color}m{word}\x1b[0m{rest}").into()
        }
        None => line.into(),
    }
}

/// A writer that colours lines, if colours are on.
pub(super) struct LinePainter<W> {
    out: W,
    is_on: bool,
    line: Vec<u8>,
}

impl<W: Write> LinePainter<W> {
    pub(super) fn new(out: W, is_on: bool) -> Self {
        Self {
            out,
            is_on,
            line: Vec::new(),
        }
    }

    fn write_line(&mut self) -> io::Result<()> {
        let line = std::mem::take(&mut self.line);
        match std::str::from_utf8(&line) {
            Ok(text) => self.out.write_all(painted(text).as_bytes()),
            Err(_) => self.out.write_all(&line),
        }
    }
}

impl<W: Write> Write for LinePainter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_on {
            return self.out.write(bytes);
        }
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                self.write_line()?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_line()?;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_word_of_a_line_has_a_colour() {
        let mut painter = LinePainter::new(Vec::new(), true);
        painter
            .write_all(b"error: a\nkeep    b keep\n{\"a\": 1}\n-rw-r--r-- c\nund")
            .unwrap();
        painter.write_all(b"one").unwrap();
        painter.flush().unwrap();
        assert_eq!(
            String::from_utf8(painter.out).unwrap(),
            "\x1b[31merror:\x1b[0m a\n\x1b[32mkeep\x1b[0m    b keep\n{\"a\": 1}\n-rw-r--r-- c\nundone"
        );
    }
}
