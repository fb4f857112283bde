//! Prints the differences between two backups of a repository.
//!
//! Both are read side by side in path order, so memory holds a few pages, whatever their size.
//! Pages that both backups share are not read: two backups of a million files with few changes are
//! compared in a moment.

use super::{
    diff_entry::{DiffEntries, Parts, differing_bytes, differing_properties, last},
    diff_renames::{RenamedDirectory, WholeDirectories},
    listing::kind_parts,
};
use fullbore_format::text::source_text;
use fullbore_format::{
    entry::{EntryKind, is_within, order},
    error::{Error, ErrorKind, Result},
    root::{EntryName, PageAt, Root},
    sizes, text,
};
use fullbore_repository::{
    archive::{Archive, Selection, source_paths::selection_in_either},
    open::{backups_in_volumes, list_backups, named, open},
    select::BackupFilter,
};
use fullbore_storage::{Location, Storages};
use serde::Serialize;
use serde_json::{Value, json};
use std::{cmp::Ordering, collections::HashSet, ffi::OsString, io::Write, path::Path};

/// The backups to compare, and the form of the output.
#[derive(Debug, Clone, Default)]
pub(super) struct Diff {
    /// How storages are reached.
    pub(super) storages: Storages,
    /// The repository.
    pub(super) repository: OsString,
    /// The older backup: an ID, the prefix of one, or `latest`; by default the previous backup of
    /// the same source.
    pub(super) a: Option<String>,
    /// The newer backup.
    pub(super) b: String,
    /// Selects the backups among which `latest` is chosen.
    pub(super) filter: BackupFilter,
    /// Paths in the backups; empty for everything.
    pub(super) paths: Vec<Vec<u8>>,
    /// Whether to print a line about the columns before the first difference.
    pub(super) has_header: bool,
    /// Whether to print JSON, one object a line.
    pub(super) json: bool,
}

/// An entry that differs.
#[derive(Serialize)]
struct DiffLine<'a> {
    r#type: &'static str,
    change: &'static str,
    path: EntryName,
    /// Of a directory that has another name.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_before: Option<EntryName>,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    size_before: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size_after: Option<u64>,
    differing_bytes: u64,
    /// The properties that changed.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    properties: &'a [&'static str],
}

/// A number of entries and their bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct EntrySum {
    /// Number of entries.
    pub(super) entries: u64,
    /// Bytes of the entries; for changed entries only the differing bytes.
    pub(super) bytes: u64,
}

/// Totals of the differences.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct DiffTotals {
    /// ID of the older backup.
    pub(super) a: String,
    /// ID of the newer backup.
    pub(super) b: String,
    /// Entries only in the newer backup.
    pub(super) added: EntrySum,
    /// Entries only in the older backup.
    pub(super) removed: EntrySum,
    /// Entries in both backups that differ.
    pub(super) changed: EntrySum,
    /// Directories with another name and the same content: their files.
    pub(super) renamed: EntrySum,
    /// Bytes of files in the newer backup less those in the older one.
    pub(super) growth: i64,
}

impl EntrySum {
    fn add(&mut self, bytes: u64) {
        self.entries += 1;
        sizes::add(&mut self.bytes, bytes);
    }
}

impl Diff {
    fn open_named(&self, backup: &str) -> Result<Archive> {
        let backup = named(&self.repository, backup.trim_start_matches('@'));
        open(&self.storages, backup, &self.filter)
    }

    /// Returns the ID of the previous backup of the same source.
    fn previous_backup(&self, root: &Root) -> Result<String> {
        let previous = match Location::parse(&self.repository)? {
            Location::Volumes(prefix) => self.previous_in_volumes(&prefix, root)?,
            _ => {
                let all = list_backups(&self.storages.repository_at(&self.repository)?)?;
                let earlier = all.take_while(|(id, _)| *id < root.id);
                let same = earlier.filter(|(_, other)| {
                    let other = other.as_ref();
                    other.is_ok_and(|other| other.source == root.source)
                });
                same.last().map(|(id, _)| id)
            }
        };
        previous.ok_or_else(|| {
            let message = format!(
                "could not find a backup of {} before {:?}",
                source_text(&root.source),
                root.id
            );
            Error::new(ErrorKind::NotFound, message)
                .hint("name two backups: `fullbore list` shows all of them")
        })
    }

    /// Returns the ID of the previous backup of the same source in volumes, if it is known here.
    fn previous_in_volumes(&self, prefix: &Path, root: &Root) -> Result<Option<String>> {
        let ids = backups_in_volumes(&self.storages, prefix)?;
        let mut earlier = ids.into_iter().rev().filter(|id| *id < root.id);
        let is_alike = |id: &String| {
            let archive = self.open_named(id);
            archive.is_ok_and(|archive| archive.root.source == root.source)
        };
        Ok(earlier.find(is_alike))
    }

    /// Prints the differences to `out`.
    ///
    /// # Errors
    /// Those of opening the backups, of reading their pages, and of `out`.
    pub(super) fn run(&self, out: &mut dyn Write) -> Result<DiffTotals> {
        let b = self.open_named(&self.b)?;
        let a = match &self.a {
            Some(a) => self.open_named(a)?,
            None => self.open_named(&self.previous_backup(&b.root)?)?,
        };
        let selection = selection_in_either([&a, &b], &self.paths)?;
        let selection = with_first_names(selection, [&a, &b])?;
        let ids = (a.root.id.clone(), b.root.id.clone());
        let totals = DiffTotals {
            a: ids.0,
            b: ids.1,
            ..DiffTotals::default()
        };
        let mut run = DiffRun {
            a: &a,
            b: &b,
            selection: &selection,
            json: self.json,
            lacks_header: self.has_header,
            out,
            totals,
            growth: 0,
            renamed: Vec::new(),
        };
        run.find_renamed()?;
        run.compare_all()?;
        let DiffRun {
            mut totals,
            growth,
            out,
            ..
        } = run;
        totals.growth = growth.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        if self.json {
            text::json(out, &totals_json(&totals))?
        } else {
            text::line(out, &summary(&totals))?
        }
        Ok(totals)
    }
}

/// Adds the first names of selected hard links, because changes of the content are recorded there.
fn with_first_names(selection: Selection, backups: [&Archive; 2]) -> Result<Selection> {
    let mut paths = selection.paths().to_vec();
    for path in selection.paths() {
        for backup in backups {
            paths.extend(
                backup
                    .find(path)?
                    .first()
                    .and_then(|item| match &item.entry.kind {
                        EntryKind::HardLink(target) => Some(target.clone()),
                        _ => None,
                    }),
            );
        }
    }
    Selection::new(&paths)
}

struct DiffRun<'a> {
    a: &'a Archive,
    b: &'a Archive,
    selection: &'a Selection,
    json: bool,
    lacks_header: bool,
    out: &'a mut dyn Write,
    totals: DiffTotals,
    /// Bytes of files in the newer backup less those in the older one; cannot overflow.
    growth: i128,
    renamed: Vec<RenamedDirectory>,
}

/// Returns the backup and the offset of a page in its manifest.
fn place<'a>(root: &'a Root, page: &'a PageAt) -> (&'a str, Option<u64>) {
    (
        if page.backup.is_empty() {
            &root.id
        } else {
            &page.backup
        },
        page.manifest_offset,
    )
}

fn places(root: &Root) -> HashSet<(&str, Option<u64>)> {
    root.pages.iter().map(|page| place(root, page)).collect()
}

/// Returns the entries of the pages of `archive` that `other` does not share.
fn entries<'a>(
    archive: &'a Archive,
    other: &'a Archive,
    selection: &'a Selection,
) -> impl Iterator<Item = Result<Parts>> + use<'a> {
    let shared = places(&other.root);
    let records = archive.records_on(selection, |page| {
        !shared.contains(&place(&archive.root, page))
    });
    DiffEntries(records.peekable())
}

impl DiffRun<'_> {
    /// Finds the directories that were renamed, before anything is printed.
    fn find_renamed(&mut self) -> Result<()> {
        let mut removed = WholeDirectories::default();
        let mut added = WholeDirectories::default();
        let selection = self.selection;
        self.each_pair(|_, was, is| {
            let Some(parts) = is.or(was) else {
                return Ok(());
            };
            match (was, is) {
                _ if !selection.holds(&last(parts).entry.path) => {}
                (Some(parts), None) => removed.take(parts),
                (None, Some(parts)) => added.take(parts),
                _ => {}
            }
            Ok(())
        })?;
        self.renamed = removed.renamed(added);
        Ok(())
    }

    fn compare_all(&mut self) -> Result<()> {
        self.each_pair(|run, was, is| run.compare_entry(was, is))
    }

    /// Calls `take` with each entry that is in pages that are not shared, of one backup or of both.
    fn each_pair(
        &mut self,
        mut take: impl FnMut(&mut Self, Option<&Parts>, Option<&Parts>) -> Result<()>,
    ) -> Result<()> {
        let a = self.a;
        let b = self.b;
        let selection = self.selection;
        let mut before = entries(a, b, selection).peekable();
        let mut after = entries(b, a, selection).peekable();
        loop {
            let order = match (before.peek(), after.peek()) {
                (None, None) => return Ok(()),
                // An error is taken at once, so that it ends the comparison where it came up.
                (Some(Err(_)), _) | (Some(_), None) => Ordering::Less,
                (_, Some(Err(_))) | (None, Some(_)) => Ordering::Greater,
                (Some(Ok(a)), Some(Ok(b))) => order(&last(a).entry.path, &last(b).entry.path),
            };
            let was = if order.is_le() {
                before.next().transpose()?
            } else {
                None
            };
            let is = if order.is_ge() {
                after.next().transpose()?
            } else {
                None
            };
            take(self, was.as_ref(), is.as_ref())?;
        }
    }

    fn compare_entry(&mut self, was: Option<&Parts>, is: Option<&Parts>) -> Result<()> {
        let Some(entry) = is.or(was).map(|parts| &last(parts).entry) else {
            return Ok(());
        };
        let wanted = self.selection.holds(&entry.path);
        if wanted
            && was.is_none() != is.is_none()
            && let Some(renamed) = self.renamed_with(&entry.path, was.is_some())
        {
            return self.print_renamed(&renamed, &entry.path);
        }
        let word = was
            .zip(is)
            .map_or(Vec::new(), |(was, is)| differing_properties(was, is));
        let size = |parts: &Parts| last(parts).entry.size();
        let new = |parts: &Parts| last(parts).entry.data_len();
        let (change, bytes, sum) = match (was, is) {
            (Some(_), Some(_)) if word.is_empty() => return Ok(()),
            (Some(was), Some(is)) => {
                let bytes = differing_bytes((&self.a.root, was), (&self.b.root, is));
                ("changed", bytes, &mut self.totals.changed)
            }
            (None, is) => ("added", is.map_or(0, new), &mut self.totals.added),
            (was, None) => ("removed", was.map_or(0, new), &mut self.totals.removed),
        };
        if !wanted {
            return Ok(());
        }
        sum.add(bytes);
        let before = was.map(size);
        let after = is.map(size);
        let growth = i128::from(after.unwrap_or(0)) - i128::from(before.unwrap_or(0));
        self.growth += growth;
        let line = DiffLine {
            r#type: "change",
            change,
            path: EntryName(entry.path.clone()),
            path_before: None,
            kind: kind_parts(&entry.kind).0,
            size_before: before,
            size_after: after,
            differing_bytes: bytes,
            properties: &word,
        };
        self.print(&line, entry.kind == EntryKind::Directory)
    }

    fn print(&mut self, line: &DiffLine<'_>, is_directory: bool) -> Result<()> {
        if std::mem::take(&mut self.lacks_header) {
            text::line(self.out, &format!("  {:>15}  PATH", "BYTES"))?;
        }
        if self.json {
            text::json(self.out, line)
        } else {
            text::line(self.out, &text_line(line, is_directory))
        }
    }

    /// Returns the renamed directory that has this path of one backup.
    fn renamed_with(&self, path: &[u8], is_before: bool) -> Option<RenamedDirectory> {
        let mut renamed = self.renamed.iter();
        let found = renamed.find(|renamed| match is_before {
            true => is_within(path, &renamed.before),
            false => is_within(path, &renamed.after),
        });
        found.cloned()
    }

    /// Prints a renamed directory once: where its new name comes.
    fn print_renamed(&mut self, renamed: &RenamedDirectory, path: &[u8]) -> Result<()> {
        if path != renamed.after {
            return Ok(());
        }
        let sum = &mut self.totals.renamed;
        sum.entries += renamed.files;
        sizes::add(&mut sum.bytes, renamed.bytes);
        let line = DiffLine {
            r#type: "change",
            change: "renamed",
            path: EntryName(renamed.after.clone()),
            path_before: Some(EntryName(renamed.before.clone())),
            kind: kind_parts(&EntryKind::Directory).0,
            size_before: None,
            size_after: None,
            differing_bytes: 0,
            properties: &[],
        };
        self.print(&line, true)
    }
}

/// `+        1,234  path`.
fn text_line(line: &DiffLine<'_>, directory: bool) -> String {
    let sign = match line.change {
        "added" => '+',
        "removed" => '-',
        "renamed" => '>',
        _ => '~',
    };
    let path = if line.path.0.is_empty() {
        ".".to_owned()
    } else {
        text::name(&line.path.0)
    };
    let slash = if directory { "/" } else { "" };
    let before = line.path_before.as_ref();
    let before = before.map_or(String::new(), |path| {
        format!("{}/ -> ", text::name(&path.0))
    });
    let bytes = text::count(line.differing_bytes);
    let sizes = match (line.size_before, line.size_after) {
        (Some(before), Some(after)) if before != after => {
            format!("{} to {} bytes; ", text::count(before), text::count(after))
        }
        _ => String::new(),
    };
    let message = if line.properties.is_empty() {
        String::new()
    } else {
        format!("  ({sizes}{})", line.properties.join(", "))
    };
    format!("{sign} {bytes:>15}  {before}{path}{slash}{message}")
}

fn totals_json(totals: &DiffTotals) -> Value {
    let DiffTotals {
        a,
        b,
        added,
        removed,
        changed,
        renamed,
        growth,
    } = totals;
    json!({"type": "result", "id_before": a, "id_after": b,
        "added": added.entries, "added_bytes": added.bytes, "removed": removed.entries, "removed_bytes": removed.bytes,
        "changed": changed.entries, "changed_bytes": changed.bytes,
        "renamed": renamed.entries, "renamed_bytes": renamed.bytes, "growth_bytes": growth})
}

fn summary(totals: &DiffTotals) -> String {
    let DiffTotals {
        a,
        b,
        added,
        removed,
        changed,
        renamed,
        growth,
    } = totals;
    let sum_of =
        |sum: &EntrySum| format!("{} ({})", text::count(sum.entries), text::bytes(sum.bytes));
    let sign = if *growth < 0 { "less" } else { "more" };
    let added = sum_of(added);
    let removed = sum_of(removed);
    let changed = sum_of(changed);
    let growth = text::bytes(growth.unsigned_abs());
    let renamed = match renamed.entries {
        0 => String::new(),
        _ => format!("{} in renamed directories, ", sum_of(renamed)),
    };
    format!(
        "from {a} to {b}: {added} added, {removed} removed, {changed} changed, {renamed}{growth} {sign}"
    )
}
