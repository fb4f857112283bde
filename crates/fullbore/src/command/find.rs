//! Prints the backups of a repository that hold a path, and when the path changed.
//!
//! Each page is read once, however many backups refer to it, and only if it can match the pattern.
//! The pages of all backups are read side by side in path order, and a path is printed as soon as
//! no unread page can hold it: memory holds the records of a few pages, whatever the number of
//! matches.

use super::{
    find_pattern::{FindPattern, check_pattern},
    list::kind_parts,
};
use fullbore_crypt::only_adds;
use fullbore_format::text::source_text;
use fullbore_format::{
    digest::Digest,
    entry::{self, EntryPath, Time, order},
    error::{Error, ErrorKind, Result},
    layout::BACKUPS,
    page::Record,
    root::{EntryName, SourceInfo},
    text,
};
use fullbore_repository::{
    archive::{Archive, object::Sealing},
    inventory::{PageRef, sheets},
    open::{backup_ids, list_backups, pick, place, without_backup},
    select::BackupFilter,
};
use fullbore_storage::{Objects, Storages};
use fullbore_tree::patterns::Patterns;
use serde::Serialize;
use std::{
    cmp::Ordering, collections::BTreeMap, ffi::OsString, io::Write, iter::Peekable,
    ops::RangeInclusive, sync::Arc,
};

/// The pattern and the backups to search.
#[derive(Debug, Clone, Default)]
pub struct Find {
    /// How storages are reached.
    pub storages: Storages,
    /// `REPO[@BACKUP]`; with a backup only that one is searched.
    pub repository: OsString,
    /// A pattern as in `.gitignore`: `*.conf` anywhere, `/etc/*.conf` or `etc/*.conf` from the root of
    /// the backup.
    pub pattern: OsString,
    /// Selects the backups that are searched.
    pub filter: BackupFilter,
    /// Whether to print a line about the columns first.
    pub has_header: bool,
    /// Whether to print JSON, one object a line.
    pub json: bool,
}

/// The properties that distinguish two versions of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FoundVersion {
    kind: &'static str,
    size: u64,
    mtime: Time,
    digest: Option<Digest>,
    target: Option<EntryName>,
}

/// A version and the backups that hold it, as ranges of positions among the backups of the source.
/// A version that disappeared and came back has several ranges.
#[derive(Debug)]
struct HeldVersion {
    version: FoundVersion,
    runs: Vec<RangeInclusive<usize>>,
}

/// A version as JSON.
#[derive(Serialize)]
struct FindLine<'a> {
    path: EntryName,
    source: &'a str,
    kind: &'static str,
    size: u64,
    mtime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<&'a EntryName>,
    first: &'a str,
    last: &'a str,
    backups: u64,
}

/// A version in one range of backups.
type InRange = (FoundVersion, RangeInclusive<usize>);

/// A path and its versions, ordered by the first backup of each range.
type FoundVersions = (EntryPath, Vec<InRange>);

impl Find {
    /// Prints the matches to `out`. Returns the exit code: 0; 4 if a root is damaged; 1 if a root
    /// cannot be read for another reason. The output names that root.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for an invalid pattern; [`ErrorKind::NotFound`] without a match; errors
    /// of the repository, of damaged pages and of `out`.
    pub fn run(&self, out: &mut dyn Write) -> Result<u8> {
        check_pattern(&self.pattern)?;
        let (_, backup) = place(&self.repository)?;
        let repository = &self
            .storages
            .repository_at(without_backup(&self.repository))?;
        let only = backup
            .map(|backup| pick(repository, Some(backup), &self.filter))
            .transpose()?;
        let opened = self.open_sources(repository, only.as_deref(), out)?;
        let (code, locked) = (opened.code, opened.locked);
        let sources = opened.sources.into_iter();
        let sources = sources
            .map(|(name, archives)| self.source(repository, name, archives))
            .collect::<Result<_>>()?;
        let found = self.print_matches(sources, out)?;
        if locked > 0 {
            return Err(locked_error(repository, locked));
        }
        if code == 0 && !found {
            let what = format!(
                "could not find {:?} in any backup of {:?}",
                self.pattern, self.repository
            );
            return Err(Error::new(ErrorKind::NotFound, what));
        }
        Ok(code)
    }

    fn source<'a>(
        &self,
        repository: &'a Arc<dyn Objects>,
        name: String,
        archives: Vec<Archive>,
    ) -> Result<FindSource<'a>> {
        let first = archives.first().map(|archive| &archive.root.source);
        let pattern = FindPattern::new(&self.pattern, first.unwrap_or(&SourceInfo::default()))?;
        let ids = archives.iter().map(|archive| archive.root.id.clone());
        Ok(FindSource {
            name,
            ids: ids.collect(),
            found: PathSweep::new(repository, archives, pattern).peekable(),
        })
    }

    /// Opens the selected backups by source, and prints those that cannot be opened.
    fn open_sources(
        &self,
        repository: &Arc<dyn Objects>,
        only: Option<&str>,
        out: &mut dyn Write,
    ) -> Result<OpenedSources> {
        let mut opened = OpenedSources::default();
        let mut is_any = self.filter.is_empty();
        for (id, mut root) in list_backups(repository)? {
            if only.is_some_and(|only| only != id) {
                continue;
            }
            let is_listed = root.is_ok();
            if root
                .as_mut()
                .is_ok_and(|root| !self.filter.selects_in(repository, root))
            {
                continue;
            }
            is_any = true;
            match root.and_then(|_| Archive::open_backup(repository, &id)) {
                Ok(archive) if is_locked(&archive) => opened.locked += 1,
                Ok(archive) => opened
                    .sources
                    .entry(source_text(&archive.root.source))
                    .or_default()
                    .push(archive),
                // Forgotten since it was listed.
                Err(error) if is_listed && error.kind == ErrorKind::NotFound => {}
                Err(error) => {
                    opened.code = error.exit_code().max(opened.code);
                    self.print_error(&id, &error, out)?;
                }
            }
        }
        if is_any {
            Ok(opened)
        } else {
            Err(self.filter.none_selected(repository)?)
        }
    }

    fn print_error(&self, id: &str, error: &Error, out: &mut dyn Write) -> Result<()> {
        let error = error.line();
        if self.json {
            text::json(out, &serde_json::json!({"id": id, "error": error}))
        } else {
            text::line(out, &format!("{id}  {error}"))
        }
    }

    /// Prints the matches of all sources. Returns whether there were any.
    fn print_matches(&self, mut sources: Vec<FindSource<'_>>, out: &mut dyn Write) -> Result<bool> {
        let with_some = sources
            .iter_mut()
            .filter_map(|source| source.found.peek().map(drop))
            .take(2)
            .count();
        if self.has_header && with_some > 0 {
            let of = if with_some > 1 { "  SOURCE" } else { "" };
            let dates = format!(
                "{:>15} {:<16}  {:<23}{:<27}",
                "SIZE", "CHANGED", "FROM", "    TO"
            );
            text::line(out, &format!("{dates}  {:>4}  PATH{of}", "IN"))?;
        }
        for FindSource { name, ids, found } in sources {
            for found in found {
                let (path, versions) = found?;
                for held in &versions {
                    if self.json {
                        text::json(out, &line(&name, &ids, &path, held))?
                    } else {
                        text::line(
                            out,
                            &plain((with_some > 1).then_some(&name), &ids, &path, held),
                        )?
                    }
                }
            }
        }
        Ok(with_some > 0)
    }
}

/// The selected backups of a repository.
#[derive(Default)]
struct OpenedSources {
    sources: BTreeMap<String, Vec<Archive>>,
    /// The exit code for those that could not be opened.
    code: u8,
    /// How many have lists that the key does not open.
    locked: u64,
}

/// The error of backups that may have the path, and whose lists the key does not open.
fn locked_error(repository: &Arc<dyn Objects>, locked: u64) -> Error {
    let sealed = repository.as_sealed();
    let refused = sealed.and_then(|sealed| sealed.check_readable(BACKUPS).err());
    let error = refused.unwrap_or_else(|| only_adds(&repository.describe(BACKUPS)));
    let backups = text::counted(locked, "backup");
    error.detail(format!("the lists of {backups} were not searched"))
}

/// Returns whether the pages of a backup are encrypted, and the key does not open them.
fn is_locked(archive: &Archive) -> bool {
    archive.store().sealing() == Sealing::Locked && archive.root.pages.is_empty()
}

/// A source: its name, the IDs of its backups, oldest first, and their matches.
struct FindSource<'a> {
    name: String,
    ids: Vec<String>,
    found: Peekable<PathSweep<'a>>,
}

/// The matches of one source, in archive order.
///
/// Pages are read in the order of their first paths, so a path before the start of the next page is
/// on no unread page.
struct PathSweep<'a> {
    repository: &'a Arc<dyn Objects>,
    /// The backups of the source, oldest first.
    archives: Vec<Archive>,
    pattern: Arc<FindPattern>,
    /// The pages to read, the next one last.
    sheets: Vec<PageRef>,
    met: BTreeMap<ArchiveOrder, Vec<HeldVersion>>,
}

/// A path, ordered as in archives.
#[derive(PartialEq, Eq)]
struct ArchiveOrder(EntryPath);

impl Ord for ArchiveOrder {
    fn cmp(&self, other: &Self) -> Ordering {
        order(&self.0, &other.0)
    }
}

impl PartialOrd for ArchiveOrder {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<'a> PathSweep<'a> {
    fn new(repository: &'a Arc<dyn Objects>, archives: Vec<Archive>, pattern: FindPattern) -> Self {
        let selection = &pattern.selection;
        let wanted = |archive: &Archive| archive.pages(selection).into_iter().flatten().collect();
        let mut sheets = sheets(&archives, wanted);
        sheets.sort_by(|a, b| order(first_path(&archives, b), first_path(&archives, a)));
        Self {
            repository,
            archives,
            pattern: Arc::new(pattern),
            sheets,
            met: BTreeMap::new(),
        }
    }

    /// Returns whether all backups that have this page were forgotten since. Then the page may have
    /// been pruned.
    fn is_gone(&self, sheet: &PageRef) -> bool {
        let listed = backup_ids(&**self.repository)
            .unwrap_or_else(|_| self.archives.iter().map(|a| a.root.id.clone()).collect());
        !sheet
            .of
            .iter()
            .any(|at| listed.contains(&self.archives[*at].root.id))
    }

    fn read(&mut self, sheet: &PageRef) -> Result<()> {
        let archive = &self.archives[sheet.at.0];
        let page = archive.read_page(&archive.root.pages[sheet.at.1])?;
        let of = join_ranges(sheet.of.iter().map(|at| *at..=*at).collect());
        // A file that spans several pages is found once, by the part with its digest. A file that
        // was not captured counts as not held.
        let is_held = |record: &&Record| {
            !record.more && (record.state.is_stored() || !record.entry.is_file())
        };
        let pattern = self.pattern.clone();
        let mut links = Vec::new();
        for record in page
            .records
            .iter()
            .filter(is_held)
            .filter(|record| matches(&pattern.patterns, record))
        {
            match &record.entry.kind {
                entry::EntryKind::HardLink(target) => links.push((record, target)),
                _ => add_holders(self.versions(record), version(record), &of),
            }
        }
        // Size and digest of a file are in the record of its first name, which may be on another
        // page in each backup. Sorted, each page is read once.
        links.sort_by(|(_, a), (_, b)| order(a, b));
        for at in sheet.of.iter().filter(|_| !links.is_empty()) {
            for (record, target) in &links {
                let link = version(record);
                let file = self.archives[*at].last_of(target);
                let (size, digest) = file.map_or((link.size, link.digest), |file| {
                    (file.entry.size(), file.digest)
                });
                add_holders(
                    self.versions(record),
                    FoundVersion {
                        size,
                        digest,
                        ..link
                    },
                    &[*at..=*at],
                );
            }
            self.archives[*at].let_go();
        }
        Ok(())
    }

    fn versions(&mut self, record: &Record) -> &mut Vec<HeldVersion> {
        self.met
            .entry(ArchiveOrder(record.entry.path.clone()))
            .or_default()
    }
}

impl Iterator for PathSweep<'_> {
    type Item = Result<FoundVersions>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let next = self
                .sheets
                .last()
                .map(|sheet| first_path(&self.archives, sheet));
            if let Some(met) = self.met.first_entry()
                && next.is_none_or(|next| order(&met.key().0, next).is_lt())
            {
                let (ArchiveOrder(path), versions) = met.remove_entry();
                return Some(Ok((path, by_range(versions))));
            }
            let sheet = self.sheets.pop()?;
            match self.read(&sheet) {
                Err(error) if !self.is_gone(&sheet) => return Some(Err(error)),
                _ => {}
            }
        }
    }
}

/// Returns the first path of a page.
fn first_path<'a>(archives: &'a [Archive], sheet: &PageRef) -> &'a [u8] {
    &archives[sheet.at.0].root.pages[sheet.at.1].first.0
}

fn matches(pattern: &Patterns, record: &Record) -> bool {
    let path = &record.entry.path;
    let is_dir = record.entry.kind == entry::EntryKind::Directory;
    !path.is_empty() && pattern.matches(path, is_dir)
}

fn version(record: &Record) -> FoundVersion {
    let (kind, target, _) = kind_parts(&record.entry.kind);
    let size = record.entry.size();
    let mtime = record.entry.mtime;
    FoundVersion {
        kind,
        size,
        mtime,
        digest: record.digest,
        target,
    }
}

/// Adds the backups `of` to a version.
fn add_holders(
    versions: &mut Vec<HeldVersion>,
    version: FoundVersion,
    of: &[RangeInclusive<usize>],
) {
    match versions.iter_mut().find(|held| held.version == version) {
        Some(held) => held.runs = join_ranges(held.runs.iter().chain(of).cloned().collect()),
        None => versions.push(HeldVersion {
            version,
            runs: of.to_vec(),
        }),
    }
}

/// Sorts ranges, and joins those that touch or overlap.
fn join_ranges(mut runs: Vec<RangeInclusive<usize>>) -> Vec<RangeInclusive<usize>> {
    runs.sort_by_key(|run| *run.start());
    runs.dedup_by(|run, before| {
        let touches = *run.start() <= before.end() + 1;
        if touches {
            *before = *before.start()..=*before.end().max(run.end());
        }
        touches
    });
    runs
}

fn by_range(versions: Vec<HeldVersion>) -> Vec<InRange> {
    let of = |HeldVersion { version, runs }: HeldVersion| {
        runs.into_iter().map(move |run| (version.clone(), run))
    };
    let mut all: Vec<_> = versions.into_iter().flat_map(of).collect();
    all.sort_by_key(|(_, run)| *run.start());
    all
}

fn line<'a>(
    source: &'a str,
    ids: &'a [String],
    path: &EntryPath,
    (version, run): &'a InRange,
) -> FindLine<'a> {
    FindLine {
        path: EntryName(path.clone()),
        source,
        kind: version.kind,
        size: version.size,
        mtime: text::rfc3339(version.mtime),
        digest: version.digest.map(|digest| digest.to_string()),
        target: version.target.as_ref(),
        first: &ids[*run.start()],
        last: &ids[*run.end()],
        backups: run.clone().count() as u64,
    }
}

fn plain(
    source: Option<&String>,
    ids: &[String],
    path: &EntryPath,
    (version, run): &InRange,
) -> String {
    let first = run.start();
    let last = run.end();
    let backups = run.clone().count();
    let size = text::count(version.size);
    let time = text::local_minute(version.mtime);
    let source = source.map_or(String::new(), |source| format!("  of {source}"));
    let until = if first == last {
        format!("{:>27}", "")
    } else {
        format!(" to {}", ids[*last])
    };
    let first = &ids[*first];
    format!(
        "{size:>15} {time}  {first}{until}  {backups:>4}  {}{source}",
        text::name(path)
    )
}
