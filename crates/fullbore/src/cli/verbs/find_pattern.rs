//! The pattern of `fullbore find`, as it is read for one source.
//!
//! A pattern is one of a `.gitignore`. As everywhere, a path may also be written as it is on the
//! host: `/srv/app/x` of a backup of `/srv/app` is `x` at the root of the backup.

use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::SourceInfo,
};
use fullbore_repository::archive::{Selection, source_paths::places_of};
use fullbore_tree::patterns::Patterns;
use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path};

/// A pattern, and the directories of a backup that can hold a match.
pub(super) struct FindPattern {
    pub(super) patterns: Patterns,
    pub(super) selection: Selection,
}

impl FindPattern {
    /// Reads a pattern as it is meant for the backups of `source`.
    ///
    /// # Errors
    /// As [`Selection::new`].
    pub(super) fn new(text: &OsStr, source: &SourceInfo) -> Result<Self> {
        let lines = readings(text.as_bytes(), source);
        let prefixes: Vec<_> = lines.iter().map(|line| prefix(line)).collect();
        let is_anywhere = prefixes.iter().any(Vec::is_empty);
        let within = if is_anywhere {
            Vec::new()
        } else {
            prefixes.concat()
        };
        Ok(Self {
            patterns: Patterns::read(&lines, &[] as &[&Path], &[])?,
            selection: Selection::new(&within)?,
        })
    }
}

/// Returns the pattern as it was written, and as the source has a path of the host.
fn readings(text: &[u8], source: &SourceInfo) -> Vec<Vec<u8>> {
    let text = match text.strip_prefix(b"./") {
        Some(rest) => [b"/", rest].concat(),
        None => text.to_vec(),
    };
    let on_host = text.strip_prefix(b"/");
    let places = on_host.map(|path| places_of(source, path));
    let places = places
        .into_iter()
        .flatten()
        .filter(|place| !place.is_empty());
    let places: Vec<_> = places.map(|place| [b"/", &place[..]].concat()).collect();
    std::iter::once(text).chain(places).collect()
}

/// Refuses a pattern that can match no name.
///
/// # Errors
/// [`ErrorKind::Usage`].
pub(super) fn check_pattern(text: &OsStr) -> Result<()> {
    let pattern = Patterns::of(text.as_bytes());
    if pattern.can_match() {
        return Ok(());
    }
    Err(
        Error::new(ErrorKind::Usage, format!("cannot search for {text:?}"))
            .because("it is not a valid pattern".to_owned())
            .hint("write \\! or \\# for a name that starts with ! or #"),
    )
}

/// Returns the directory that contains all matches, if the pattern names one: the parts before the
/// first wildcard.
fn prefix(pattern: &[u8]) -> Vec<Vec<u8>> {
    let parts = || {
        pattern
            .split(|byte| *byte == b'/')
            .filter(|part| !part.is_empty())
    };
    let is_anchored = pattern.starts_with(b"/") || parts().nth(1).is_some();
    let is_plain = |part: &&[u8]| {
        !part.iter().any(|byte| b"*?[\\\n".contains(byte)) && part.trim_ascii() == *part
    };
    let plain: Vec<&[u8]> = parts().take_while(is_plain).collect();
    if is_anchored && !plain.is_empty() {
        vec![plain.join(&b'/')]
    } else {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_format::root::EntryName;

    #[test]
    fn only_what_can_hold_the_pattern_is_read() {
        let regex_of = |pattern: &str| {
            prefix(pattern.as_bytes())
                .into_iter()
                .map(|path| String::from_utf8(path).unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(regex_of("etc/ssh/*.conf"), ["etc/ssh"]);
        assert_eq!(regex_of("/etc/passwd"), ["etc/passwd"]);
        assert_eq!(regex_of("/etc"), ["etc"]);
        for anywhere in ["*.conf", "passwd", "**/a/b", "dir/", "a*/b", "\\!a/b"] {
            assert_eq!(regex_of(anywhere), [""; 0], "{anywhere}");
        }
    }

    #[test]
    fn a_path_of_the_host_is_read_as_the_backup_has_it() {
        let source = |paths: &[&str], contents| SourceInfo {
            host: "h".to_owned(),
            paths: paths
                .iter()
                .map(|path| EntryName(path.as_bytes().to_vec()))
                .collect(),
            contents,
        };
        let one = source(&["/srv/app"], true);
        let two = source(&["/srv/app", "/etc"], false);
        for (text, source, lines) in [
            ("/srv/app/x.conf", &one, &["/srv/app/x.conf", "/x.conf"][..]),
            ("/srv/app/x*", &two, &["/srv/app/x*", "/app/x*"]),
            ("/etc/passwd", &two, &["/etc/passwd", "/etc/passwd"]),
            ("/srv/apple", &one, &["/srv/apple"]),
            ("./app", &one, &["/app"]),
            ("*.conf", &one, &["*.conf"]),
        ] {
            let found = readings(text.as_bytes(), source);
            let found: Vec<_> = found
                .iter()
                .map(|line| std::str::from_utf8(line).unwrap())
                .collect();
            assert_eq!(found, lines, "{text}");
        }
    }
}
