//! The table of the backups of a repository.
//!
//! A row fits its terminal: the source is shortened in its middle, and a narrow terminal gets fewer columns. Facts that few
//! backups have follow on a line below it.

use super::List;
use crate::cli::report::tag;
use fullbore_format::{
    error::{Error, Result},
    root::{ClusterInfo, Root, SourceInfo},
    root_parts::PSEUDONYM,
    text::{
        self,
        columns::fitted_row,
        local_time::{local_second, recent_minute},
        source_text,
    },
};
use fullbore_repository::base::is_part;
use jiff::Zoned;
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
};

/// Terminals with fewer columns get neither FILES nor ADDED.
const ALL_FIGURES: usize = 80;
/// Terminals with fewer columns get no SIZE either.
const WITH_SIZE: usize = 66;
/// Columns of an id, and the space behind it.
const NOTE_COLUMN: usize = 24;

/// A backup that can be read.
pub(in crate::cli::verbs) struct TableBackup {
    pub(in crate::cli::verbs) root: Root,
    pub(in crate::cli::verbs) pinned: bool,
    /// Files that it lost, as the last verification of data found; 0 if it is not known how many.
    pub(in crate::cli::verbs) loss: Option<u64>,
    /// The put key that made it, as a person sees it.
    pub(in crate::cli::verbs) put_key: Option<String>,
}

/// Prints the table, row by row, and counts.
pub(super) struct BackupTable<'a> {
    list: &'a List,
    now: Zoned,
    /// Columns of the terminal, if rows are fitted.
    columns: Option<usize>,
    has_header: bool,
    backups: u64,
    sources: BTreeSet<String>,
    stored_bytes: u64,
    damaged: u64,
    /// Whether a source has a pseudonym, because no key was given that reads its name.
    has_pseudonyms: bool,
}

impl<'a> BackupTable<'a> {
    pub(super) fn new(list: &'a List) -> Self {
        Self {
            list,
            now: Zoned::now(),
            columns: list.columns.filter(|_| !list.long),
            has_header: list.quiet,
            backups: 0,
            sources: BTreeSet::new(),
            stored_bytes: 0,
            damaged: 0,
            has_pseudonyms: false,
        }
    }

    /// Prints a backup.
    ///
    /// # Errors
    /// Those of `out`.
    pub(super) fn print(&mut self, backup: &TableBackup, out: &mut dyn Write) -> Result<()> {
        let TableBackup { root, .. } = backup;
        self.print_header(out)?;
        let source = source_text(&root.source);
        let totals = &root.totals;
        let cells = [
            &*root.id,
            &recent_minute(&root.time, &self.now),
            &text::count(totals.files),
            &text::bytes(totals.bytes),
            &text::bytes(totals.stored_bytes),
            &source,
        ];
        text::line(out, &row(cells, self.columns))?;
        self.backups += 1;
        self.sources.insert(source);
        self.has_pseudonyms |=
            root.source.host.starts_with(PSEUDONYM) && root.source.paths.is_empty();
        self.stored_bytes = self.stored_bytes.saturating_add(totals.stored_bytes);
        let details = if self.list.long {
            details(root)
        } else {
            Vec::new()
        };
        for note in notes(backup).into_iter().chain(details) {
            text::line(out, &format!("{:NOTE_COLUMN$}{note}", ""))?;
        }
        Ok(())
    }

    /// Prints a backup that cannot be read.
    ///
    /// # Errors
    /// Those of `out`.
    pub(super) fn print_damaged(
        &mut self,
        id: &str,
        error: &str,
        out: &mut dyn Write,
    ) -> Result<()> {
        self.print_header(out)?;
        self.damaged += 1;
        text::line(out, &format!("{id}  {error}"))
    }

    /// Prints a backup that was interrupted.
    ///
    /// # Errors
    /// Those of `out`.
    pub(super) fn print_interrupted(&mut self, root: &Root, out: &mut dyn Write) -> Result<()> {
        self.print_header(out)?;
        let when = recent_minute(&root.time, &self.now);
        let source = source_text(&root.source);
        let line = format!(
            "{:<23} {when:<16}  interrupted and incomplete, of {source}",
            root.id
        );
        text::line(out, &line)
    }

    fn print_header(&mut self, out: &mut dyn Write) -> Result<()> {
        if std::mem::replace(&mut self.has_header, true) {
            return Ok(());
        }
        text::line(
            out,
            &row(
                ["BACKUP", "WHEN", "FILES", "SIZE", "ADDED", "SOURCE"],
                self.columns,
            ),
        )
    }

    /// Prints the last line. `repository_bytes` are those of all objects, if all backups are listed.
    ///
    /// # Errors
    /// Those of `out`.
    pub(super) fn finish(&self, repository_bytes: Option<u64>, out: &mut dyn Write) -> Result<()> {
        if self.list.quiet || self.backups + self.damaged == 0 {
            return Ok(());
        }
        let backups = text::counted(self.backups, "backup");
        let sources = text::counted(self.sources.len() as u64, "source");
        let stored = text::bytes(repository_bytes.unwrap_or(self.stored_bytes));
        let damaged = match self.damaged {
            0 => String::new(),
            n => format!("; {} cannot be read", text::counted(n, "more backup")),
        };
        text::line(
            out,
            &format!("{backups} of {sources}, {stored} stored{damaged}"),
        )?;
        if self.has_pseudonyms {
            text::line(out, "hosts and paths are encrypted: --key FILE shows them")?;
        }
        Ok(())
    }
}

fn row([id, when, files, size, added, source]: [&str; 6], columns: Option<usize>) -> String {
    let name = format!("{id:<23} {when:<16}");
    let before = match columns {
        Some(..WITH_SIZE) => format!("{name}  "),
        Some(..ALL_FIGURES) => format!("{name} {size:>8}  "),
        _ => format!("{name} {files:>6} {size:>8} {added:>7}  "),
    };
    fitted_row(&before, source, columns)
}

/// Returns what is special about a backup: one line or none.
fn notes(backup: &TableBackup) -> Option<String> {
    let TableBackup {
        root,
        pinned,
        loss,
        put_key,
    } = backup;
    let totals = &root.totals;
    let mut notes = Vec::new();
    // A put key can say any host. One that has the name of its host is as expected.
    let stranger = put_key.iter().filter(|name| **name != root.source.host);
    notes.extend(stranger.map(|name| format!("added with put key {name:?}")));
    notes.extend(loss.map(|files| match files {
        0 => "damaged".to_owned(),
        n => format!("damaged, {} lost", text::counted(n, "file")),
    }));
    if is_part(&root.left_out) {
        notes.push("in part".to_owned());
    }
    if totals.unreadable > 0 {
        notes.push(format!("{} not captured", text::count(totals.unreadable)));
    }
    if totals.bad_pages > 0 {
        let files = text::count(totals.bad_pages);
        notes.push(format!("{files} with wrong page checksums"));
    }
    if *pinned {
        notes.push("pinned".to_owned());
    }
    let tags: Vec<String> = root
        .tags
        .iter()
        .map(|(key, value)| tag(key, value))
        .collect();
    if !tags.is_empty() {
        notes.push(format!("tags {}", tags.join(", ")));
    }
    (!notes.is_empty()).then(|| notes.join("; "))
}

/// Returns the lines that `--long` adds.
fn details(root: &Root) -> Vec<String> {
    let mut details = vec![format!(
        "from {} to {}",
        local_second(&root.time),
        local_second(&root.finished)
    )];
    let cluster = root.postgres.as_ref();
    details.extend(cluster.map(|cluster| cluster_text(root, cluster)));
    let left_out = root.left_out.iter();
    details.extend(left_out.map(|option| text::name(option.as_bytes())));
    details
}

/// Describes the points that recovery can start from: end of the backup and timeline.
fn cluster_text(root: &Root, cluster: &ClusterInfo) -> String {
    let ClusterInfo {
        major,
        timeline,
        stop_lsn,
        ..
    } = cluster;
    match (cluster.online, &*cluster.wal) {
        (false, _) => format!("PostgreSQL {major}, shut down, timeline {timeline}"),
        (true, wal) => {
            let without = if wal == "included" {
                ""
            } else {
                ", without its WAL"
            };
            let ended = local_second(root.captured_at());
            format!(
                "PostgreSQL {major}, ended {ended} at {}, timeline {timeline}{without}",
                text::name(stop_lsn.as_bytes())
            )
        }
    }
}

/// A backup as JSON; of a damaged one only the ID and the error.
#[derive(Serialize)]
pub(in crate::cli::verbs) struct BackupLine<'a> {
    r#type: &'static str,
    id: &'a str,
    time: Option<&'a str>,
    end_time: Option<&'a str>,
    source: Option<&'a SourceInfo>,
    source_text: Option<String>,
    entries: Option<u64>,
    files: Option<u64>,
    bytes: Option<u64>,
    stored_bytes: Option<u64>,
    /// The bases of the backup; with bases, `stored_bytes` counts only the data added.
    bases: Option<&'a [String]>,
    tags: Option<&'a BTreeMap<String, String>>,
    pinned: Option<bool>,
    /// The put key that made it, for a reader with the key of a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    put_key: Option<&'a str>,
    /// Files that the last verification of data found to be lost; 0 if it is not known which.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost_files: Option<u64>,
    /// Options that excluded entries.
    left_out: Option<&'a [String]>,
    /// Number of entries that could not be read, and of files with wrong page checksums.
    unreadable: Option<u64>,
    bad_pages: Option<u64>,
    /// The cluster, for a backup of PostgreSQL.
    postgres: Option<&'a ClusterInfo>,
    /// Whether every entry could be read during the backup, with correct page checksums.
    complete: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl<'a> BackupLine<'a> {
    pub(in crate::cli::verbs) fn new(id: &'a str, noted: &'a Result<TableBackup>) -> Self {
        let (noted, error) = (noted.as_ref().ok(), noted.as_ref().err().map(Error::line));
        let root = noted.map(|backup| &backup.root);
        let totals = root.map(|root| &root.totals);
        Self {
            r#type: "backup",
            id,
            time: root.map(|root| &*root.time),
            end_time: root.map(|root| &*root.finished),
            source: root.map(|root| &root.source),
            source_text: root.map(|root| source_text(&root.source)),
            entries: totals.map(|totals| totals.entries),
            files: totals.map(|totals| totals.files),
            bytes: totals.map(|totals| totals.bytes),
            stored_bytes: totals.map(|totals| totals.stored_bytes),
            bases: root.map(|root| &root.bases[..]),
            tags: root.map(|root| &root.tags),
            pinned: noted.map(|backup| backup.pinned),
            put_key: noted.and_then(|backup| backup.put_key.as_deref()),
            lost_files: noted.and_then(|backup| backup.loss),
            left_out: root.map(|root| &root.left_out[..]),
            unreadable: totals.map(|totals| totals.unreadable),
            bad_pages: totals.map(|totals| totals.bad_pages),
            postgres: root.and_then(|root| root.postgres.as_ref()),
            complete: totals.is_some_and(|totals| totals.is_complete()),
            error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_below_their_header() {
        assert_eq!(
            row(["BACKUP", "WHEN", "FILES", "SIZE", "ADDED", "SOURCE"], None),
            "BACKUP                  WHEN              FILES     SIZE   ADDED  SOURCE"
        );
        let cells = [
            "20261125T185348Z-pwdtl7",
            "today 19:53",
            "46,470",
            "559 MB",
            "252 MB",
            "vm:/usr/share/doc",
        ];
        assert_eq!(
            row(cells, Some(200)),
            "20261125T185348Z-pwdtl7 today 19:53      46,470   559 MB  252 MB  vm:/usr/share/doc"
        );
        assert_eq!(
            row(cells, Some(80)),
            "20261125T185348Z-pwdtl7 today 19:53      46,470   559 MB  252 MB  vm:/usr/…/doc"
        );
        assert_eq!(
            row(cells, Some(66)),
            "20261125T185348Z-pwdtl7 today 19:53        559 MB  vm:/usr/…/doc"
        );
        assert_eq!(
            row(cells, Some(60)),
            "20261125T185348Z-pwdtl7 today 19:53       vm:/usr/share/doc"
        );
    }
}
