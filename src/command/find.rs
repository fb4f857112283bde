//! Print which backups of a repository hold a path, and when it changed.
//!
//! Each page is read once, however many backups refer to it, and only those that can hold what the pattern says.

use super::{
    list::{kind_parts, source_text},
    text,
};
use crate::{
    error::{Error, Kind, Result},
    format::{
        digest::Digest,
        entry::{self, Path, Time},
        page::Record,
        root::Name,
    },
    repo::open::list_backups,
    source::archive::{Archive, Selection},
};
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use serde::Serialize;
use std::{collections::HashMap, ffi::OsStr, io::Write, os::unix::ffi::OsStrExt, rc::Rc};

/// What to find.
#[derive(Debug, Clone, Default)]
pub struct Find {
    /// The repository.
    pub repository: String,
    /// A pattern as in `.gitignore`: `*.conf` anywhere, `/etc/*.conf` or `etc/*.conf` from the root of the backup.
    pub pattern: String,
    /// One JSON object a line?
    pub json: bool,
}

/// What makes two copies of a path the same version.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Version {
    kind: &'static str,
    size: u64,
    mtime: Time,
    digest: Option<Digest>,
    target: Option<Name>,
}

/// A version, and the backups that hold it.
#[derive(Debug)]
struct Held {
    version: Version,
    first: String,
    last: String,
    backups: u64,
}

/// A version as JSON.
#[derive(Serialize)]
struct Line<'a> {
    path: Name,
    source: &'a str,
    kind: &'static str,
    size: u64,
    mtime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<&'a Name>,
    first: &'a str,
    last: &'a str,
    backups: u64,
}

/// What of one page matches.
type Matches = Rc<Vec<(Path, Version)>>;

impl Find {
    /// Print to `out`; the result is the exit code: 0 if something was found, 1 if nothing was, 4 if a backup is damaged, which
    /// is said.
    ///
    /// # Errors
    /// [`Kind::Usage`] for a pattern that means nothing; those of the repository, of pages that are damaged, and of `out`.
    pub fn run(&self, out: &mut dyn Write) -> Result<u8> {
        let pattern = pattern(&self.pattern)?;
        let selection = Selection::new(&prefix(&self.pattern))?;
        let mut search = Search { pattern, selection, pages: HashMap::new(), found: HashMap::new() };
        let mut code = 1;
        for (id, root) in list_backups(std::path::Path::new(&self.repository))? {
            let opened = root.and_then(|_| Archive::open_backup(std::path::Path::new(&self.repository), &id));
            match opened {
                Ok(archive) => search.backup(&archive)?,
                Err(error) => {
                    code = 4;
                    match self.json {
                        true => text::json(out, &serde_json::json!({"id": id, "error": error.line()}))?,
                        false => text::line(out, &format!("{id}  {}", error.line()))?,
                    }
                }
            }
        }
        let found = search.sorted();
        self.print(&found, out)?;
        Ok(if code == 1 && !found.is_empty() { 0 } else { code })
    }

    fn print(&self, found: &[((String, Path), Vec<Held>)], out: &mut dyn Write) -> Result<()> {
        let several = found.iter().any(|((source, _), _)| *source != found[0].0.0);
        for ((source, path), versions) in found {
            for held in versions {
                match self.json {
                    true => text::json(out, &line(source, path, held))?,
                    false => text::line(out, &plain(several.then_some(source), path, held))?,
                }
            }
        }
        Ok(())
    }
}

fn pattern(text: &str) -> Result<Gitignore> {
    let bad = |why: String| Error::new(Kind::Usage, format!("cannot search for {text:?}")).because(why);
    let mut builder = GitignoreBuilder::new("");
    builder.add_line(None, text).map_err(|e| bad(e.to_string()))?;
    let pattern = builder.build().map_err(|e| bad(e.to_string()))?;
    match pattern.num_ignores() {
        0 => Err(bad("it is no pattern".to_owned()).hint("write \\! or \\# for a name that begins so")),
        _ => Ok(pattern),
    }
}

/// The directory that everything a pattern matches is in, if it says so: what is before the first part with a wildcard.
fn prefix(pattern: &str) -> Vec<Vec<u8>> {
    let anchored = pattern.trim_end_matches('/').contains('/');
    let plain = |part: &&str| !part.contains(['*', '?', '[', '{', '\\']) && part.trim() == *part;
    let parts: Vec<&str> = pattern.split('/').filter(|part| !part.is_empty()).take_while(plain).collect();
    if anchored && !parts.is_empty() { vec![parts.join("/").into_bytes()] } else { Vec::new() }
}

struct Search {
    pattern: Gitignore,
    selection: Selection,
    /// What was found in each page, by the backup that has it and where.
    pages: HashMap<(String, Option<u64>), Matches>,
    /// By source and path.
    found: HashMap<(String, Path), Vec<Held>>,
}

impl Search {
    fn backup(&mut self, archive: &Archive) -> Result<()> {
        let source = source_text(&archive.root.source);
        for index in archive.pages(&self.selection).into_iter().flatten() {
            for (path, version) in self.page(archive, index)?.iter() {
                let versions = self.found.entry((source.clone(), path.clone())).or_default();
                hold(versions, version, &archive.root.id);
            }
        }
        Ok(())
    }

    fn page(&mut self, archive: &Archive, index: usize) -> Result<Matches> {
        let at = &archive.root.pages[index];
        let backup = if at.backup.is_empty() { &archive.root.id } else { &at.backup };
        let key = (backup.clone(), at.manifest_offset);
        if let Some(known) = self.pages.get(&key) {
            return Ok(known.clone());
        }
        let page = archive.page(index)?;
        // A file that goes on over pages is found once, by the part that has its digest.
        let found = page.records.iter().filter(|record| !record.more && self.matches(record));
        let matches = Rc::new(found.map(|record| (record.entry.path.clone(), version(record))).collect::<Vec<_>>());
        self.pages.insert(key, matches.clone());
        Ok(matches)
    }

    fn matches(&self, record: &Record) -> bool {
        let (path, directory) = (OsStr::from_bytes(&record.entry.path), record.entry.kind == entry::Kind::Directory);
        !path.is_empty() && self.pattern.matched(path, directory).is_ignore()
    }

    /// By source, then path.
    fn sorted(self) -> Vec<((String, Path), Vec<Held>)> {
        let mut found: Vec<_> = self.found.into_iter().collect();
        found.sort_by(|((a, x), _), ((b, y), _)| a.cmp(b).then_with(|| entry::order(x, y)));
        found
    }
}

fn version(record: &Record) -> Version {
    let (kind, target, _) = kind_parts(&record.entry.kind);
    let (size, mtime) = (record.entry.size(), record.entry.mtime);
    Version { kind, size, mtime, digest: record.digest, target }
}

fn hold(versions: &mut Vec<Held>, version: &Version, id: &str) {
    match versions.iter_mut().find(|held| held.version == *version) {
        Some(held) => {
            id.clone_into(&mut held.last);
            held.backups += 1;
        }
        None => versions.push(Held { version: version.clone(), first: id.to_owned(), last: id.to_owned(), backups: 1 }),
    }
}

fn line<'a>(source: &'a str, path: &Path, held: &'a Held) -> Line<'a> {
    let Held { version, first, last, backups } = held;
    Line {
        path: Name(path.clone()),
        source,
        kind: version.kind,
        size: version.size,
        mtime: text::rfc3339(version.mtime),
        digest: version.digest.map(|digest| digest.to_string()),
        target: version.target.as_ref(),
        first,
        last,
        backups: *backups,
    }
}

fn plain(source: Option<&String>, path: &Path, held: &Held) -> String {
    let Held { version, first, last, backups } = held;
    let (size, time) = (text::count(version.size), text::local_minute(version.mtime));
    let source = source.map_or(String::new(), |source| format!("  of {source}"));
    let until = if first == last { format!("{:>26}", "") } else { format!(" to {last}") };
    format!("{size:>15} {time}  {first}{until}  {backups:>4}  {}{source}", text::name(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_hold_the_pattern_is_read() {
        let of = |pattern| prefix(pattern).into_iter().map(|path| String::from_utf8(path).unwrap()).collect::<Vec<_>>();
        assert_eq!(of("etc/ssh/*.conf"), ["etc/ssh"]);
        assert_eq!(of("/etc/passwd"), ["etc/passwd"]);
        assert_eq!(of("/etc"), ["etc"]);
        for anywhere in ["*.conf", "passwd", "**/a/b", "dir/", "a*/b", "\\!a/b"] {
            assert_eq!(of(anywhere), [""; 0], "{anywhere}");
        }
    }
}
