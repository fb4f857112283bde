//! Exclude patterns as in a `.gitignore`: the last matching pattern decides.
//!
//! Patterns have the same meaning as in git: names of any bytes, classes that never match `/`, and
//! literal braces. Patterns without a wildcard are looked up in a table, whatever their number; the
//! others are tried one after the other.
//!
//! A pattern that has matched nothing is probably wrong, so matches are recorded.

use fullbore_format::{
    entry,
    error::{Error, ErrorKind, Result, quoted},
};
use gix_ignore::glob::{
    Pattern,
    pattern::{Case, Mode as PatternMode},
    wildmatch::Mode,
};
use std::{
    collections::HashMap,
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

/// An ordered list of patterns.
#[derive(Debug, Default)]
pub struct Patterns {
    all: Vec<PatternRule>,
    lines: Vec<PatternLine>,
    /// Patterns without a wildcard, by the name or path that they match.
    names: HashMap<Vec<u8>, Vec<usize>>,
    paths: HashMap<Vec<u8>, Vec<usize>>,
    wild: Vec<WildPattern>,
}

/// A pattern with a wildcard, and the length of its literal suffix.
#[derive(Debug)]
struct WildPattern {
    rule: usize,
    end: usize,
}

/// A path that patterns are matched against.
struct MatchedPath<'a> {
    path: &'a [u8],
    /// Start of the last name in the path.
    name_at: usize,
    is_dir: bool,
}

/// One pattern, and the index of its line.
#[derive(Debug)]
struct PatternRule {
    pattern: Pattern,
    line: usize,
}

/// A pattern as the user wrote it. It may stand for several patterns, one for each directory that
/// is backed up.
#[derive(Debug)]
struct PatternLine {
    text: Vec<u8>,
    has_matched: AtomicBool,
}

/// A directory that is backed up: its names on this machine, and its path in the backup.
#[derive(Debug, Clone)]
pub struct PatternPlace {
    /// Absolute paths, without the first `/`.
    pub names: Vec<entry::EntryPath>,
    /// Path of the directory in the backup.
    pub at: entry::EntryPath,
}

impl Patterns {
    pub fn of(line: &[u8]) -> Self {
        let mut patterns = Self::default();
        patterns.add(line, &[]);
        patterns
    }

    /// Reads the patterns in `files`, one a line, and then those in `lines`, which can negate
    /// patterns of the files. A pattern that begins with `/` and the name of one of `places` is
    /// relative to that place.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for a file that cannot be read.
    pub fn read(
        lines: &[impl AsRef<[u8]>],
        files: &[impl AsRef<Path>],
        places: &[PatternPlace],
    ) -> Result<Self> {
        let mut patterns = Self::default();
        for file in files.iter().map(AsRef::as_ref) {
            let bad = |e| Error::io(format!("could not read the patterns in {file:?}"), e);
            patterns.add(
                &fs::read(file).map_err(|e| Error {
                    kind: ErrorKind::Usage,
                    ..bad(e)
                })?,
                places,
            );
        }
        lines
            .iter()
            .for_each(|line| patterns.add(line.as_ref(), places));
        Ok(patterns)
    }

    /// Returns whether any pattern is not negated.
    pub fn can_match(&self) -> bool {
        !self.all.iter().all(|rule| rule.pattern.is_negative())
    }

    /// Returns whether the last pattern that matches this path, relative to the root, is not
    /// negated.
    pub fn matches(&self, path: &[u8], is_dir: bool) -> bool {
        self.matching_line(path, is_dir).is_some()
    }

    /// Returns the last pattern that matches this path, as the user wrote it, unless it is negated.
    pub fn matching_line(&self, path: &[u8], is_dir: bool) -> Option<&[u8]> {
        let object = MatchedPath {
            path,
            name_at: path.len() - entry::split(path).1.len(),
            is_dir,
        };
        let last = self.last_match(&object)?;
        self.note_matches(&object);
        self.line_unless_negated(last)
    }

    /// Returns the number of the last pattern that matches.
    fn last_match(&self, object: &MatchedPath<'_>) -> Option<usize> {
        let literal_matches = self.literal_matches(object).max();
        let mut later = self
            .wild
            .iter()
            .rev()
            .take_while(|wild| Some(wild.rule) > literal_matches);
        later
            .find(|wild| self.is_match(wild, object))
            .map(|wild| wild.rule)
            .or(literal_matches)
    }

    fn line_unless_negated(&self, index: usize) -> Option<&[u8]> {
        let rule = &self.all[index];
        (!rule.pattern.is_negative()).then(|| &self.lines[rule.line].text[..])
    }

    /// Returns negated patterns that take nothing back, because another pattern leaves out a
    /// directory above; each with that pattern. Only for directories that are named without a
    /// wildcard.
    pub fn idle_negations(&self) -> Vec<(&[u8], &[u8])> {
        let negated = self.all.iter().filter(|rule| rule.pattern.is_negative());
        let idle = negated.filter_map(|rule| {
            let upper = self.pattern_above(&rule.pattern)?;
            Some((&self.lines[rule.line].text[..], upper))
        });
        idle.collect()
    }

    /// Returns the pattern that leaves out a directory in the path of another pattern.
    fn pattern_above(&self, pattern: &Pattern) -> Option<&[u8]> {
        let literal = pattern.first_wildcard_pos.unwrap_or(pattern.text.len());
        let path = &pattern.text[..literal];
        let slashes = (0..path.len()).filter(|slash| path[*slash] == b'/');
        { slashes }.find_map(|slash| {
            let above = MatchedPath {
                path: &path[..slash],
                name_at: slash - entry::split(&path[..slash]).1.len(),
                is_dir: true,
            };
            self.line_unless_negated(self.last_match(&above)?)
        })
    }

    /// Returns a warning for each of [`Self::idle_negations`].
    pub fn idle_warnings(&self) -> impl Iterator<Item = String> {
        let idle = self.idle_negations().into_iter();
        idle.map(|(pattern, upper)| {
            let (pattern, upper) = (quoted(pattern), quoted(upper));
            format!("the pattern {pattern} takes nothing back: {upper} leaves out the directory; leave out what is in it instead, as in \"/dir/*\"")
        })
    }

    /// Returns the patterns that have matched nothing so far, as the user wrote them.
    pub fn unmatched(&self) -> impl Iterator<Item = &[u8]> {
        self.lines
            .iter()
            .filter(|line| !line.has_matched.load(Relaxed))
            .map(|line| &line.text[..])
    }

    /// Returns the matching patterns without a wildcard.
    fn literal_matches(&self, object: &MatchedPath<'_>) -> impl Iterator<Item = usize> {
        let found = [
            self.names.get(&object.path[object.name_at..]),
            self.paths.get(object.path),
        ];
        let is_dir = object.is_dir;
        found
            .into_iter()
            .flatten()
            .flatten()
            .copied()
            .filter(move |index| {
                is_dir
                    || !self.all[*index]
                        .pattern
                        .mode
                        .contains(PatternMode::MUST_BE_DIR)
            })
    }

    fn is_match(&self, wild: &WildPattern, object: &MatchedPath<'_>) -> bool {
        let pattern = &self.all[wild.rule].pattern;
        let (path, name_at, is_dir) = (
            object.path,
            Some(object.name_at).filter(|start| *start > 0),
            Some(object.is_dir),
        );
        let slashes = Mode::NO_MATCH_SLASH_LITERAL;
        path.ends_with(&pattern.text[pattern.text.len() - wild.end..])
            && pattern.matches_repo_relative_path(
                path.into(),
                name_at,
                is_dir,
                Case::Sensitive,
                slashes,
            )
    }

    /// Records all matching patterns, not only the last one: the others are right too.
    fn note_matches(&self, object: &MatchedPath<'_>) {
        self.literal_matches(object)
            .for_each(|index| self.has_matched(index).store(true, Relaxed));
        let unmatched = self.wild.iter();
        let unmatched = unmatched.filter(|wild| !self.has_matched(wild.rule).load(Relaxed));
        unmatched
            .filter(|wild| self.is_match(wild, object))
            .for_each(|wild| self.has_matched(wild.rule).store(true, Relaxed));
    }

    /// Whether the line of this rule has matched an object.
    fn has_matched(&self, rule: usize) -> &AtomicBool {
        &self.lines[self.all[rule].line].has_matched
    }

    fn add(&mut self, text: &[u8], places: &[PatternPlace]) {
        let lines: Vec<&[u8]> = text
            .strip_prefix(BOM)
            .unwrap_or(text)
            .split(|byte| *byte == b'\n')
            .collect();
        // One line can become several rules, one for each name of a place. The line is kept once,
        // for messages.
        for (pattern, number, _) in gix_ignore::parse(text, false) {
            let line = self.lines.len();
            let text = lines[number - 1];
            let text = text.strip_suffix(b"\r").unwrap_or(text).to_vec();
            self.lines.push(PatternLine {
                text,
                has_matched: AtomicBool::new(false),
            });
            let relative: Vec<Pattern> = places
                .iter()
                .flat_map(|place| place.relative_pattern(&pattern))
                .collect();
            if relative.is_empty() {
                self.push(PatternRule { pattern, line });
            }
            for pattern in relative {
                self.push(PatternRule { pattern, line });
            }
        }
    }

    fn push(&mut self, rule: PatternRule) {
        let index = self.all.len();
        let text = rule.pattern.text.to_vec();
        match rule.pattern.first_wildcard_pos {
            Some(_) => {
                let end = text
                    .iter()
                    .rev()
                    .take_while(|byte| !WILD.contains(byte) && **byte != b'/')
                    .count();
                self.wild.push(WildPattern { rule: index, end });
            }
            None if rule.pattern.mode.contains(PatternMode::NO_SUB_DIR)
                && !rule.pattern.mode.contains(PatternMode::ABSOLUTE) =>
            {
                self.names.entry(text).or_default().push(index);
            }
            None => self.paths.entry(text).or_default().push(index),
        }
        self.all.push(rule);
    }
}

/// Byte order mark that some editors write at the start of a file.
const BOM: &[u8] = b"\xef\xbb\xbf";

/// Bytes with a special meaning in patterns.
const WILD: &[u8] = b"*?[]\\";

impl PatternPlace {
    /// Translates a pattern with a path of this machine to a path of the backup, if it begins with
    /// a name of this place.
    fn relative_pattern(&self, pattern: &Pattern) -> Option<Pattern> {
        let rest = self
            .names
            .iter()
            .find_map(|name| parts_below(&pattern.text, name))?;
        // A pattern without a leading `/` matches at any depth, so it is not tied to a place.
        let is_absolute = pattern.mode.contains(PatternMode::ABSOLUTE) && !rest.is_empty();
        let mut text = Vec::new();
        for name in self
            .at
            .split(|byte| *byte == b'/')
            .filter(|name| !name.is_empty())
        {
            text.push(b'/');
            text.extend(escape_name(name));
        }
        for name in rest {
            text.push(b'/');
            text.extend(name);
        }
        text.extend(
            pattern
                .mode
                .contains(PatternMode::MUST_BE_DIR)
                .then_some(b'/'),
        );
        let mut relative = Pattern::from_bytes_without_negation(&text).filter(|_| is_absolute)?;
        relative.mode |= pattern.mode & PatternMode::NEGATIVE;
        Some(relative)
    }
}

/// Splits a pattern that begins with `path`, and returns its parts after this path.
fn parts_below<'a>(pattern: &'a [u8], path: &[u8]) -> Option<Vec<&'a [u8]>> {
    let mut parts = pattern.split(|byte| *byte == b'/').filter(is_part);
    for name in path.split(|byte| *byte == b'/').filter(is_part) {
        // A shell passes a path as it is, including wildcard characters.
        parts
            .next()
            .filter(|part| *part == name || *part == escape_name(name))?;
    }
    Some(parts.collect())
}

fn is_part(part: &&[u8]) -> bool {
    !part.is_empty()
}

/// Escapes a name, so that the pattern matches only this name.
pub fn escape_name(name: &[u8]) -> Vec<u8> {
    name.iter()
        .flat_map(|byte| {
            WILD.contains(byte)
                .then_some(b'\\')
                .into_iter()
                .chain([*byte])
        })
        .collect()
}

#[cfg(test)]
mod tests;
