//! The backups of a repository, as they are listed, and what pages show of some of them.
//!
//! In memory are [a few bytes](BackupRows) of each backup. The roots of those that a page shows are read again, and some stay. The
//! repository is listed again when the list is older than ten seconds and somebody asks. While one request lists, the others
//! get the list that is there: a storage that hangs holds one connection.

use fullbore_engine::fleet::{BackupRow, BackupRows, FleetQuestion, RepositoryLook};
use fullbore_format::{error::Result, root::Root};
use fullbore_platform::queue::{Locked, run_each};
use fullbore_repository::{
    annotations::Annotations, open::listed_roots, root_index::IndexPlace, select::BackupFilter,
    verify_memory::VerifyMemory,
};
use fullbore_storage::{Objects, at_once};
use jiff::Timestamp;
use serde::{Serialize, Serializer};
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    ops::Deref,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// Time after which a repository is listed again.
const LISTING_AGE: Duration = Duration::from_secs(10);
/// Bytes of the texts of summaries that stay in memory.
const KEPT_BYTES: usize = 1 << 20;

/// What pages show of a backup without opening it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct BackupSummary {
    pub(crate) id: String,
    /// When it began and ended, as RFC 3339.
    pub(crate) time: String,
    #[serde(rename = "end_time")]
    pub(crate) finished: String,
    pub(crate) entries: u64,
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) stored_bytes: u64,
    pub(crate) kept_bytes: u64,
    pub(crate) unreadable: u64,
    pub(crate) bad_pages: u64,
    /// Whether everything was captured.
    pub(crate) complete: bool,
    pub(crate) bases: usize,
    pub(crate) tags: BTreeMap<String, String>,
    pub(crate) pinned: bool,
    /// Files that it lost, as the last verification of data found.
    pub(crate) lost_files: Option<u64>,
    /// The system identifier of a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) system: Option<String>,
    pub(crate) seconds: f64,
    /// What the run waited for.
    pub(crate) limit: String,
    /// Busy, starved and blocked shares of the source, the workers and the sink.
    pub(crate) shares: BTreeMap<String, [f64; 3]>,
}

impl BackupSummary {
    fn of(root: Root) -> Self {
        let totals = &root.totals;
        Self {
            entries: totals.entries,
            files: totals.files,
            bytes: totals.bytes,
            stored_bytes: totals.stored_bytes,
            kept_bytes: totals.kept_bytes,
            unreadable: totals.unreadable,
            bad_pages: totals.bad_pages,
            complete: totals.is_complete(),
            bases: root.bases.len(),
            tags: root.tags,
            pinned: false,
            lost_files: None,
            system: root.postgres.map(|cluster| cluster.system_identifier),
            seconds: root.run.seconds,
            limit: root.run.limit,
            shares: root.run.shares,
            id: root.id,
            time: root.time,
            finished: root.finished,
        }
    }

    /// About the bytes that it takes.
    fn weight(&self) -> usize {
        let tags = self
            .tags
            .iter()
            .map(|(tag, value)| tag.len() + value.len() + 64);
        let texts = [&self.id, &self.time, &self.finished, &self.limit];
        let shares = self.shares.keys().map(|name| name.len() + 64);
        let texts = texts.iter().map(|text| text.len());
        size_of::<Self>() + texts.chain(tags).chain(shares).sum::<usize>()
    }
}

/// A summary that pages share.
#[derive(Debug, Clone)]
pub(crate) struct SharedBackup(Arc<BackupSummary>);

impl Deref for SharedBackup {
    type Target = BackupSummary;

    fn deref(&self) -> &BackupSummary {
        &self.0
    }
}

impl Serialize for SharedBackup {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// A value that is made again when somebody asks and it is old.
#[derive(Default)]
struct Aged<T> {
    made: Mutex<Option<(Instant, Arc<T>)>>,
    /// Held while it is made.
    making: Mutex<()>,
}

impl<T> Aged<T> {
    /// Returns the value, made at most [`LISTING_AGE`] ago, or longer while another thread makes it. `make` is called with the old one.
    fn get(&self, make: impl FnOnce(Option<&T>) -> Result<T>) -> Result<Arc<T>> {
        let made = self.made.locked().clone();
        if let Some((_, value)) = made.as_ref().filter(|(time, _)| is_fresh(*time)) {
            return Ok(value.clone());
        }
        let _making = match (self.making.try_lock(), made) {
            (Ok(making), _) => making,
            (Err(_), Some((_, value))) => return Ok(value),
            (Err(_), None) => self.making.locked(),
        };
        // Another thread may have made it meanwhile.
        let old = self.made.locked().clone();
        if let Some((_, value)) = old.as_ref().filter(|(time, _)| is_fresh(*time)) {
            return Ok(value.clone());
        }
        let value = Arc::new(make(old.as_ref().map(|(_, value)| &**value))?);
        *self.made.locked() = Some((Instant::now(), value.clone()));
        Ok(value)
    }
}

fn is_fresh(time: Instant) -> bool {
    time.elapsed() < LISTING_AGE
}

/// Summaries that were read, the oldest first.
#[derive(Default)]
struct KeptSummaries {
    by_id: HashMap<String, SharedBackup>,
    order: VecDeque<String>,
    bytes: usize,
}

impl KeptSummaries {
    fn add(&mut self, summary: &SharedBackup) {
        if self.by_id.contains_key(&summary.id) {
            return;
        }
        self.bytes += summary.weight();
        self.order.push_back(summary.id.clone());
        self.by_id.insert(summary.id.clone(), summary.clone());
        while self.bytes > KEPT_BYTES
            && let Some(oldest) = self.order.pop_front()
        {
            let dropped = self.by_id.remove(&oldest);
            self.bytes -= dropped.map_or(0, |summary| summary.weight());
        }
    }
}

/// Lists a repository when somebody asks.
pub(crate) struct Catalog {
    objects: Arc<dyn Objects>,
    index: IndexPlace,
    listing: Aged<BackupRows>,
    look: Aged<RepositoryLook>,
    kept: Mutex<KeptSummaries>,
}

impl Catalog {
    pub(crate) fn new(objects: Arc<dyn Objects>, index: IndexPlace) -> Self {
        Self {
            objects,
            index,
            listing: Aged::default(),
            look: Aged {
                made: Mutex::default(),
                making: Mutex::default(),
            },
            kept: Mutex::default(),
        }
    }

    /// Returns the backups.
    ///
    /// # Errors
    /// Those of the storage.
    pub(crate) fn listing(&self) -> Result<Arc<BackupRows>> {
        self.listing.get(|old| {
            let (rows, _) = BackupRows::read(&self.objects, &self.index, old)?;
            Ok(rows)
        })
    }

    /// Returns the state of the sources, as `fullbore fleet` tells it.
    ///
    /// # Errors
    /// Those of the storage.
    pub(crate) fn look(&self) -> Result<Arc<RepositoryLook>> {
        let listing = self.listing()?;
        self.look.get(|_| {
            let question = FleetQuestion {
                filter: BackupFilter::default(),
                every: None,
                now: Timestamp::now(),
            };
            let memory = VerifyMemory::read(&*self.objects);
            Ok(question.look(&self.objects, &listing, &memory))
        })
    }

    /// Returns what pages show of these backups, in this order. Those that are gone, or cannot be read any more, are left out.
    pub(crate) fn summaries(&self, listing: &BackupRows, rows: &[BackupRow]) -> Vec<SharedBackup> {
        let mut found: HashMap<String, SharedBackup> = HashMap::new();
        let kept = self.kept.locked();
        for row in rows {
            if let Some(summary) = kept.by_id.get(row.id()) {
                found.insert(row.id().to_owned(), summary.clone());
            }
        }
        drop(kept);
        let unknown = rows.iter().filter(|row| !found.contains_key(row.id()));
        let unknown: Vec<String> = unknown.map(|row| row.id().to_owned()).collect();
        for (id, root) in listed_roots(&self.objects, unknown) {
            if let Ok(root) = root {
                let summary = SharedBackup(Arc::new(BackupSummary::of(root)));
                self.kept.locked().add(&summary);
                found.insert(id, summary);
            }
        }
        let mut notes = self.notes(rows);
        let shown = rows.iter().filter_map(|row| {
            let summary = found.remove(row.id())?;
            let noted = notes.remove(row.id());
            Some(noted_summary(summary, noted, listing.loss(row.id())))
        });
        shown.collect()
    }

    /// Reads later tags and pins. Damaged ones count as none, as in a restore.
    fn notes(&self, rows: &[BackupRow]) -> HashMap<String, Annotations> {
        let noted = rows.iter().filter(|row| row.is_noted());
        let noted: Vec<&BackupRow> = noted.collect();
        let mut all = HashMap::new();
        for chunk in noted.chunks(at_once(&*self.objects)) {
            let read = run_each(chunk, |row| Annotations::read(&*self.objects, row.id()));
            let pairs = chunk.iter().zip(read);
            all.extend(pairs.filter_map(|(row, notes)| Some((row.id().to_owned(), notes.ok()?))));
        }
        all
    }
}

fn noted_summary(
    known: SharedBackup,
    notes: Option<Annotations>,
    lost_files: Option<u64>,
) -> SharedBackup {
    if notes.is_none() && lost_files.is_none() {
        return known;
    }
    let mut summary = BackupSummary::clone(&known);
    summary.lost_files = lost_files;
    if let Some(notes) = notes {
        summary.pinned = notes.pinned;
        summary.tags = notes.tags.unwrap_or(summary.tags);
    }
    SharedBackup(Arc::new(summary))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_that_stay_have_a_bound() {
        let mut kept = KeptSummaries::default();
        for number in 0..20_000 {
            let root = Root {
                id: format!("backup {number}"),
                tags: [("a tag".to_owned(), "x".repeat(number % 100))].into(),
                ..Root::default()
            };
            kept.add(&SharedBackup(Arc::new(BackupSummary::of(root))));
        }
        let bytes: usize = kept.by_id.values().map(|summary| summary.weight()).sum();
        assert_eq!(bytes, kept.bytes);
        assert!(bytes <= KEPT_BYTES && bytes > KEPT_BYTES / 2);
        assert_eq!(kept.by_id.len(), kept.order.len());
        assert!(kept.by_id.contains_key("backup 19999"));
    }

    #[test]
    fn an_old_value_is_made_again_by_one_thread_while_others_get_it() {
        let aged = Aged::<u64>::default();
        assert_eq!(
            *aged.get(|old| Ok(old.map_or(1, |old| old + 1))).unwrap(),
            1
        );
        assert_eq!(*aged.get(|_| unreachable!()).unwrap(), 1);
        let long_ago = Instant::now().checked_sub(LISTING_AGE).unwrap();
        aged.made.locked().as_mut().unwrap().0 = long_ago;
        let second = aged.get(|old| {
            // What others see while this one is made.
            assert_eq!(*aged.get(|_| unreachable!()).unwrap(), 1);
            Ok(old.unwrap() + 1)
        });
        assert_eq!(*second.unwrap(), 2);
    }
}
