//! Patterns of what is left out, as in a `.gitignore`: the last one that matches decides.
//!
//! All wildcards of a matcher are looked for at once, which wants memory for each pair of them as soon as there are more than its
//! tables hold. So there are several matchers for many.

use crate::error::{Error, Kind, Result};
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt, path::Path};

/// Wildcards of one matcher.
const TOGETHER: usize = 256;

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct Patterns(Vec<Gitignore>);

impl Patterns {
    /// Those of `lines`, and then those in `files`, a line each.
    ///
    /// # Errors
    /// [`Kind::Usage`] for what is no pattern, and a file that cannot be read.
    pub fn new(lines: &[String], files: &[impl AsRef<Path>]) -> Result<Self> {
        let bad = |why: String| Error::new(Kind::Usage, "cannot use a pattern").because(why);
        let mut adding = Adding::default();
        for line in lines {
            adding.add(line).map_err(|e| bad(e.to_string()))?;
        }
        for file in files.iter().map(AsRef::as_ref) {
            let text = fs::read_to_string(file).map_err(|e| bad(format!("{}: {e}", file.display())))?;
            for (number, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
                adding.add(line).map_err(|e| bad(format!("{}: line {}: {e}", file.display(), number + 1)))?;
            }
        }
        adding.finish().map_err(|e| bad(e.to_string()))
    }

    /// Do they leave out what has this path?
    pub fn leave_out(&self, path: &[u8], is_dir: bool) -> bool {
        let path = OsStr::from_bytes(path);
        let last = self.0.iter().rev().map(|some| some.matched(path, is_dir)).find(|found| !found.is_none());
        last.is_some_and(|found| found.is_ignore())
    }
}

struct Adding {
    builder: GitignoreBuilder,
    wildcards: usize,
    done: Vec<Gitignore>,
}

impl Default for Adding {
    fn default() -> Self {
        Self { builder: GitignoreBuilder::new(""), wildcards: 0, done: Vec::new() }
    }
}

impl Adding {
    fn add(&mut self, line: &str) -> std::result::Result<(), ignore::Error> {
        self.wildcards += usize::from(line.contains(['*', '?', '[', '{']));
        if self.wildcards > TOGETHER {
            let full = std::mem::replace(&mut self.builder, GitignoreBuilder::new(""));
            self.done.push(full.build()?);
            self.wildcards = 1;
        }
        self.builder.add_line(None, line).map(drop)
    }

    fn finish(mut self) -> std::result::Result<Patterns, ignore::Error> {
        self.done.push(self.builder.build()?);
        self.done.retain(|some| !some.is_empty());
        Ok(Patterns(self.done))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_that_matches_decides_wherever_it_stands() {
        let none: [&str; 0] = [];
        let mut lines: Vec<String> = (0..2000).map(|i| format!("*{i}x")).collect();
        lines.insert(3, "*.keep".to_owned());
        lines.push("!*7x".to_owned());
        lines.push("a/*17x".to_owned());
        let patterns = Patterns::new(&lines, &none).unwrap();
        assert_eq!(patterns.0.len(), 8);
        let said = ["12x", "b.keep", "7x", "1007x", "a/17x", "a/7x", "y"]
            .map(|path| patterns.leave_out(path.as_bytes(), false));
        assert_eq!(said, [true, true, false, false, true, false, false]);
        assert!(!Patterns::default().leave_out(b"a", true) && Patterns::new(&[], &none).unwrap().0.is_empty());
        assert!(Patterns::new(&["a{".to_owned()], &none).is_err());
    }
}
