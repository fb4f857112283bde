//! Patterns as in a `.gitignore`: the last one that matches decides.
//!
//! What they mean is git's own: of names of any bytes, with classes that never match the `/`, and braces that stand for
//! themselves. Those without a wildcard are looked up, however many there are; the others are tried one after the other.

use crate::error::{Error, Kind, Result};
use gix_ignore::glob::{
    Pattern,
    pattern::{Case, Mode as Of},
    wildmatch::Mode,
};
use std::{collections::HashMap, fs, path::Path};

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct Patterns {
    all: Vec<Pattern>,
    /// Those without a wildcard, by the name or by the path that they match.
    names: HashMap<Vec<u8>, Vec<usize>>,
    paths: HashMap<Vec<u8>, Vec<usize>>,
    /// The others, each with the length of what every name that it matches ends with.
    wild: Vec<(usize, usize)>,
}

impl Patterns {
    /// Those of `lines`.
    pub fn of(lines: &[String]) -> Self {
        let mut patterns = Self::default();
        lines.iter().for_each(|line| patterns.add(line.as_bytes()));
        patterns
    }

    /// Those in `files`, a line each, and then `lines`, which so can except from them.
    ///
    /// # Errors
    /// [`Kind::Usage`] for a file that cannot be read.
    pub fn read(lines: &[String], files: &[impl AsRef<Path>]) -> Result<Self> {
        let mut patterns = Self::default();
        for file in files.iter().map(AsRef::as_ref) {
            let bad = |e| Error::io(format!("could not read the patterns in {file:?}"), e);
            patterns.add(&fs::read(file).map_err(|e| Error { kind: Kind::Usage, ..bad(e) })?);
        }
        lines.iter().for_each(|line| patterns.add(line.as_bytes()));
        Ok(patterns)
    }

    /// Is there one that is not negated?
    pub fn can_match(&self) -> bool {
        !self.all.iter().all(Pattern::is_negative)
    }

    /// Does the last one that matches this path, relative to the root, say that it does?
    pub fn matches(&self, path: &[u8], is_dir: bool) -> bool {
        let name_at = path.iter().rposition(|byte| *byte == b'/').map(|slash| slash + 1);
        let fits = |at: &&usize| is_dir || !self.all[**at].mode.contains(Of::MUST_BE_DIR);
        let exact = [self.names.get(&path[name_at.unwrap_or(0)..]), self.paths.get(path)];
        let exact = exact.into_iter().flatten().flatten().filter(fits).max();
        let matches = |(at, end): &&(usize, usize)| {
            let (pattern, slashes) = (&self.all[*at], Mode::NO_MATCH_SLASH_LITERAL);
            path.ends_with(&pattern.text[pattern.text.len() - end..])
                && pattern.matches_repo_relative_path(path.into(), name_at, Some(is_dir), Case::Sensitive, slashes)
        };
        let mut later = self.wild.iter().rev().take_while(|(at, _)| Some(at) > exact);
        let last = later.find(matches).map(|(at, _)| at).or(exact);
        last.is_some_and(|at| !self.all[*at].is_negative())
    }

    fn add(&mut self, lines: &[u8]) {
        for (pattern, ..) in gix_ignore::parse(lines, false) {
            let (at, text) = (self.all.len(), pattern.text.to_vec());
            match pattern.first_wildcard_pos {
                Some(_) => {
                    let end = text.iter().rev().take_while(|byte| !b"*?[]\\/".contains(byte)).count();
                    self.wild.push((at, end));
                }
                None if pattern.mode.contains(Of::NO_SUB_DIR) && !pattern.mode.contains(Of::ABSOLUTE) => {
                    self.names.entry(text).or_default().push(at);
                }
                None => self.paths.entry(text).or_default().push(at),
            }
            self.all.push(pattern);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::Write,
        process::{Command, Stdio},
    };

    fn of(lines: &[&str]) -> Patterns {
        Patterns::of(&lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn the_last_that_matches_decides_wherever_it_stands() {
        let patterns = of(&["*.log", "keep", "/a/b", "!x.log", "!keep", "keep/", "c/*", "!/c/d", "dir/"]);
        let said = |path: &str, is_dir| patterns.matches(path.as_bytes(), is_dir);
        let taken = ["y.log", "q/y.log", "a/b", "c/e"].map(|path| said(path, false));
        let left = ["x.log", "q/x.log", "keep", "q/a/b", "c/d", "dir", "q/dir"].map(|path| said(path, false));
        assert_eq!((taken, left), ([true; 4], [false; 7]));
        assert!(said("keep", true) && said("q/dir", true) && !said("q", true));
        assert!(!of(&["# nothing", "", "  ", "!", "!a"]).can_match());
    }

    #[test]
    fn names_of_any_bytes_can_be_written_into_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, b"\xef\xbb\xbf# of 1998\r\n/caf\xe9\r\n[\xe0-\xe9]?\n").unwrap();
        let patterns = Patterns::read(&[], &[file.path()]).unwrap();
        assert!(patterns.matches(b"caf\xe9", false) && patterns.matches(b"a/\xe1x", false));
        assert!(!patterns.matches(b"a/caf\xe9", false) && !patterns.matches(b"# of 1998", false));
        assert!(Patterns::read(&[], &["/is/not/there"]).is_err());
        let patterns = Patterns::read(&["!/a/?x".to_owned()], &[file.path(), file.path()]).unwrap();
        assert!(!patterns.matches(b"a/\xe1x", false) && patterns.matches(b"b/\xe1x", false));
    }

    /// Up to `most` of these, one after the other.
    fn draw(seed: &mut u64, parts: &[&str], most: usize, between: &str) -> String {
        let mut next = || {
            *seed ^= *seed << 13;
            *seed ^= *seed >> 7;
            *seed ^= *seed << 17;
            *seed as usize
        };
        (0..1 + next() % most).map(|_| parts[next() % parts.len()]).collect::<Vec<_>>().join(between)
    }

    fn git(dir: &Path, arguments: &[&str]) -> Command {
        let mut git = Command::new("git");
        git.args(arguments).current_dir(dir).env("HOME", dir).env("GIT_CONFIG_NOSYSTEM", "1");
        git
    }

    /// What git leaves out of `paths`, and by which pattern.
    fn asked(dir: &Path, lines: &[String], paths: &[String]) -> Vec<(bool, String)> {
        fs::write(dir.join(".gitignore"), lines.join("\n") + "\n").unwrap();
        let mut git = git(dir, &["check-ignore", "--no-index", "--stdin", "-z", "-v", "-n"]);
        let mut asked = git.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        asked.stdin.take().unwrap().write_all((paths.join("\0") + "\0").as_bytes()).unwrap();
        let said = String::from_utf8(asked.wait_with_output().unwrap().stdout).unwrap();
        let fields: Vec<&str> = said.split_terminator('\0').collect();
        assert_eq!(fields.len(), 4 * paths.len(), "{said:?}");
        let answer = |of: &[&str]| (!of[2].is_empty() && !of[2].starts_with('!'), of[2].to_owned());
        fields.chunks_exact(4).map(answer).collect()
    }

    #[test]
    fn they_mean_what_git_says_they_mean() {
        const OF_PATTERNS: [&str; 21] = [
            "a",
            "b",
            "ab",
            "/",
            "*",
            "**",
            "?",
            "[ab]",
            "[!a]",
            "[^b]",
            "[[:alpha:]]",
            "[a-b]",
            "\\",
            "{a,b}",
            "{",
            "}",
            "]",
            "!",
            " ",
            "**/",
            "/**",
        ];
        const OF_NAMES: [&str; 10] = ["a", "b", "ab", "ba", "{", "}", "]", "a,b", "\\", "{a}"];
        let dir = tempfile::tempdir().unwrap();
        match git(dir.path(), &["init", "-q"]).status() {
            Err(_) => return eprintln!("skipped: there is no git"),
            Ok(status) => assert!(status.success()),
        }
        let (mut seed, mut taken) = (0x9e37_79b9_7f4a_7c15, 0);
        for _ in 0..80 {
            // git cuts off what is before the first wildcard, and then takes the stars in `a**/b` for those of `**/b`.
            let is_plain = |line: &String| line.match_indices("**").all(|(at, _)| at == 0 || line[..at].ends_with('/'));
            let mut lines: Vec<_> = (0..4).map(|_| draw(&mut seed, &OF_PATTERNS, 5, "")).collect();
            lines.retain(is_plain);
            let paths: Vec<_> = (0..80).map(|_| draw(&mut seed, &OF_NAMES, 3, "/")).collect();
            let patterns = Patterns::of(&lines);
            for (path, (wanted, by)) in paths.iter().zip(asked(dir.path(), &lines, &paths)) {
                // What is in a directory that is left out is never come to.
                let above = path.match_indices('/').any(|(at, _)| patterns.matches(&path.as_bytes()[..at], true));
                let found = above || patterns.matches(path.as_bytes(), false);
                assert_eq!(found, wanted, "{path:?} by {lines:?}; git: {by:?}");
                taken += usize::from(found);
            }
        }
        assert!(taken > 500, "{taken}");
    }
}
