//! Checks the structure of a repository a portion after the other: memory grows with the listing of the repository, not with its roots.
//!
//! Backups of one source refer to the same pages and segments, so a portion has whole sources as long as they fit. A source that does
//! not fit is divided. What one portion found sound, the next one does not read again.

use super::{
    DamagedBackups, RunningCheck, Verify, VerifyVerdict, key_files, seek_tables::SegmentFrames,
    until_final,
};
use crate::report::damage::Damage;
use fullbore_format::{error::Result, layout::ROOT, page::SegmentId, root::PART_BYTES, sizes};
use fullbore_platform::{metrics::meter::Meter, queue::Locked};
use fullbore_repository::{
    ids::source_letters,
    inventory::{PageKey, divided},
    open::{no_backup, read_repository},
    roots::{BackupFiles, BackupState, backup_files},
    scan::{FoundDirectory, open_these},
    stored_memory::forged_memory,
    verify_memory::CheckedSum,
};
use fullbore_storage::{Objects, at_once};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Instant, SystemTime},
};

/// Limits of a portion.
#[derive(Debug, Clone, Copy)]
struct PortionLimits {
    backups: usize,
    /// Stored bytes of their roots. A larger root is a portion of its own.
    root_bytes: u64,
}

impl PortionLimits {
    /// 500 small roots with their pages and tables take about 5 MiB.
    const OF_STRUCTURE: Self = Self {
        backups: 500,
        root_bytes: 16 << 20,
    };
    /// Content is read once, whichever backups share it.
    const NONE: Self = Self {
        backups: usize::MAX,
        root_bytes: u64::MAX,
    };
}

/// Bytes that a page, a segment or the mention of one takes in a root, about.
const LISTED_BYTES: usize = 200;

/// Returns the bytes of the lists of a root in memory, about.
fn list_bytes(found: &FoundDirectory) -> u64 {
    let FoundDirectory::Backup(archive) = found else {
        return 0;
    };
    let root = &archive.root;
    let lines = root.pages.len() + root.segments.len() + root.liveness.len();
    (lines * LISTED_BYTES) as u64
}

/// Sound pages and segments of one portion, for the next one.
#[derive(Default)]
pub(crate) struct CheckedObjects {
    pub(super) frames: HashMap<SegmentId, SegmentFrames>,
    pub(super) pages: HashMap<PageKey, CheckedPage>,
}

/// A page of which an intact copy was read.
#[derive(Clone)]
pub(crate) struct CheckedPage {
    /// The segments that it refers to.
    pub(super) used: Arc<HashSet<SegmentId>>,
    /// Whether nothing is wrong with its records.
    pub(super) is_sound: bool,
}

/// What was found in the portions so far.
struct CheckedPortions {
    verdict: VerifyVerdict,
    /// The backups that were checked or have no root.
    ids: Vec<String>,
    damaged: DamagedBackups,
    /// `None` if the check reads all data itself.
    share: Option<CheckedSum>,
    known: CheckedObjects,
}

/// The result of a portion.
struct CheckedPortion {
    verdict: VerifyVerdict,
    ids: Vec<String>,
    damaged: DamagedBackups,
    segments: Vec<(SegmentId, u64)>,
    known: CheckedObjects,
}

impl Verify {
    /// Checks the backups of a repository, which `from` names. Objects that are missing because a
    /// backup was forgotten meanwhile are no damage: then the remaining backups of the portion are checked again.
    ///
    /// # Errors
    /// As [`Verify::run`].
    pub fn run_all(&self, repository: &Arc<dyn Objects>, meter: &Meter) -> Result<VerifyVerdict> {
        let start = Instant::now();
        let id = read_repository(&**repository)?.id;
        let files = backup_files(&**repository)?;
        let limits = match self.data {
            true => PortionLimits::NONE,
            false => PortionLimits::OF_STRUCTURE,
        };
        let place = PortionPlace {
            repository,
            id: &id,
            files: &files,
            root_bytes: limits.root_bytes,
        };
        let mut all = CheckedPortions {
            verdict: VerifyVerdict {
                data: self.data,
                shard: self.shard,
                ..VerifyVerdict::default()
            },
            ids: Vec::new(),
            damaged: DamagedBackups::default(),
            share: (!self.data).then(|| CheckedSum::new(&**repository, PART_BYTES)),
            known: CheckedObjects::default(),
        };
        let mut is_any = false;
        for portion in portions(&files, limits) {
            let mut ids = &portion[..];
            while !ids.is_empty() {
                let entries = meter.entries.load(Relaxed);
                let (checked, taken) = until_final(|| {
                    // A repeated look counts its entries anew.
                    meter.entries.store(entries, Relaxed);
                    self.portion(&place, ids, &mut is_any, &mut all.known, meter)
                })?;
                all.add(checked);
                ids = &ids[taken..];
            }
        }
        // An empty repository must not count as sound: there is nothing that could be damaged.
        if all.ids.is_empty() {
            return Err(match is_any {
                true => self.filter.none_selected(repository)?,
                false => no_backup(&**repository)?,
            });
        }
        all.verdict.warnings.extend(forged_memory(&**repository));
        let (damage, is_rotating) = key_files(&**repository)?;
        all.verdict.damage.extend(damage);
        all.verdict.is_rotating = is_rotating;
        let mut verdict = all.finished();
        verdict.entries = meter.entries.load(Relaxed);
        verdict.seconds = start.elapsed().as_secs_f64();
        Ok(verdict)
    }

    /// Checks a portion once, as far as its roots fit into memory. Returns how many of the ids it took; `None` if one of the backups was
    /// forgotten meanwhile.
    fn portion(
        &self,
        place: &PortionPlace<'_>,
        ids: &[String],
        is_any: &mut bool,
        known: &mut CheckedObjects,
        meter: &Meter,
    ) -> Result<Option<(CheckedPortion, usize)>> {
        let start = Instant::now();
        let begun = SystemTime::now();
        let repository = place.repository;
        let found = place.open(ids)?;
        let taken = found.len();
        let (mut archives, lost_roots) = divided(repository, found);
        *is_any |= !archives.is_empty();
        archives.retain_mut(|archive| self.filter.selects_in(repository, &mut archive.root));
        let check = RunningCheck::new(archives, Some(&**repository), self.data, meter)
            .with_shard(self.shard)
            .with_known(std::mem::take(known));
        // The sources of backups with a damaged root are unknown.
        let lost = lost_roots
            .into_iter()
            .map(|(id, error)| check.no_root(id, error))
            .collect::<Result<Vec<_>>>()?;
        let files = check.run(self.workers)?;
        check.notes(&**repository, |id, name| place.may_have(id, name))?;
        let lost: Vec<_> = lost.into_iter().chain(files).collect();
        let (ids, damaged) = (check.ids(&lost), check.damaged(&lost));
        let mut verdict = check.verdict_on(&ids, &damaged, lost, start);
        verdict.record = check.record(begun, &verdict);
        if !check.is_final(&verdict, &**repository)? {
            return Ok(None);
        }
        let segments = check.stock.segments.iter();
        let checked = CheckedPortion {
            verdict,
            ids,
            damaged,
            segments: segments
                .map(|place| (place.id.clone(), place.bytes))
                .collect(),
            known: std::mem::take(&mut *check.known.locked()),
        };
        Ok(Some((checked, taken)))
    }
}

/// The repository of a portion.
struct PortionPlace<'a> {
    repository: &'a Arc<dyn Objects>,
    id: &'a str,
    files: &'a BTreeMap<String, BackupFiles>,
    /// Bytes of the lists of opened roots, after which no more are opened.
    root_bytes: u64,
}

impl PortionPlace<'_> {
    /// Opens the first of these backups. A short root has its lists elsewhere: how much it takes is known when it is open.
    fn open(&self, ids: &[String]) -> Result<Vec<(String, FoundDirectory)>> {
        let (mut all, mut bytes) = (Vec::new(), 0u64);
        for some in ids.chunks(at_once(&**self.repository)) {
            if bytes > self.root_bytes {
                break;
            }
            let found = open_these(self.repository, self.files, some, self.id)?;
            found
                .iter()
                .for_each(|(_, found)| sizes::add(&mut bytes, list_bytes(found)));
            all.extend(found);
        }
        Ok(all)
    }

    /// Whether the notes of a backup, or the document of a forgotten one, are in the listing.
    fn may_have(&self, id: &str, name: &str) -> bool {
        self.files.get(id).is_some_and(|files| files.has(name))
    }
}

impl CheckedPortions {
    fn add(&mut self, portion: CheckedPortion) {
        let CheckedPortion {
            verdict: more,
            ids,
            damaged,
            segments,
            known,
        } = portion;
        let verdict = &mut self.verdict;
        verdict.backups += more.backups;
        verdict.is_locked |= more.is_locked;
        sizes::add(&mut verdict.not_captured, more.not_captured);
        sizes::add(&mut verdict.bad_pages, more.bad_pages);
        verdict.damage.extend(more.damage);
        verdict.lost.extend(more.lost);
        verdict.warnings.extend(more.warnings);
        match (&mut verdict.record, more.record) {
            (Some(record), Some(more)) => record.add(more),
            (record, more) => *record = record.take().or(more),
        }
        self.ids.extend(ids);
        self.damaged.add(damaged);
        for (id, bytes) in &segments {
            self.share
                .iter_mut()
                .for_each(|share| share.add(id, *bytes));
        }
        self.known = known;
    }

    fn finished(mut self) -> VerifyVerdict {
        self.ids.sort_unstable();
        let mut verdict = self.verdict;
        verdict.of = self.ids.len();
        verdict.damaged = self.damaged.among(&self.ids);
        // What a backup refers to may be damaged in another portion.
        if let Some(record) = verdict.record.as_mut().filter(|_| verdict.is_locked) {
            verdict
                .damaged
                .iter()
                .for_each(|id| record.note_damaged(id));
        }
        verdict.checked = self.share.map(|share| share.share());
        verdict.damage = joined(verdict.damage);
        verdict.warnings.sort();
        verdict.warnings.dedup();
        if let [only] = &self.ids[..] {
            verdict.id = only.clone();
        }
        verdict
    }
}

/// Sorts damage. An object that several portions share is damaged in each of them, and is reported once.
fn joined(mut damage: Vec<Damage>) -> Vec<Damage> {
    damage.sort_by(|a, b| (&a.what, &a.files).cmp(&(&b.what, &b.files)));
    let mut joined: Vec<Damage> = Vec::new();
    for mut one in damage {
        match joined.last_mut() {
            Some(last) if last.what == one.what && last.files == one.files => {
                one.detail.retain(|line| !last.detail.contains(line));
                last.detail.extend(one.detail);
            }
            _ => joined.push(one),
        }
    }
    joined
}

/// Divides the directories of a listing that are backups or should be, so that each portion is within the limits.
fn portions(files: &BTreeMap<String, BackupFiles>, limits: PortionLimits) -> Vec<Vec<String>> {
    let counts = |files: &BackupFiles| {
        matches!(files.state(), None | Some(BackupState::Listed)) && !files.is_empty()
    };
    let mut sources: BTreeMap<&str, Vec<(&String, u64)>> = BTreeMap::new();
    for (id, files) in files.iter().filter(|(_, files)| counts(files)) {
        let source = sources.entry(source_letters(id)).or_default();
        source.push((id, files.bytes(ROOT).unwrap_or(0)));
    }
    let mut portions = Vec::new();
    let mut open = OpenPortion::default();
    for source in sources.values() {
        let bytes = sizes::sum(source.iter().map(|(_, bytes)| *bytes));
        if !open.has_room(limits, source.len(), bytes) {
            portions.extend(open.end());
        }
        for (id, bytes) in source {
            if !open.has_room(limits, 1, *bytes) {
                portions.extend(open.end());
            }
            open.ids.push((*id).clone());
            sizes::add(&mut open.bytes, *bytes);
        }
    }
    portions.extend(open.end());
    portions
}

#[derive(Default)]
struct OpenPortion {
    ids: Vec<String>,
    bytes: u64,
}

impl OpenPortion {
    fn has_room(&self, limits: PortionLimits, backups: usize, bytes: u64) -> bool {
        self.ids.len().saturating_add(backups) <= limits.backups
            && self.bytes.saturating_add(bytes) <= limits.root_bytes
    }

    /// Returns the ids, unless there are none, and begins anew.
    fn end(&mut self) -> Option<Vec<String>> {
        let ended = std::mem::take(self);
        (!ended.ids.is_empty()).then_some(ended.ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_repository::roots::key;
    use fullbore_storage::{MemoryObjects, PutIf};

    /// The sizes of the portions of sources with so many backups, and of each the letters of its sources.
    fn divided(sources: &[usize], limits: PortionLimits) -> Vec<(usize, Vec<String>)> {
        let objects = MemoryObjects::new();
        for (source, backups) in sources.iter().enumerate() {
            for number in 0..*backups {
                // A backup of one source is followed by one of another.
                let id = format!("202601{:02}T0000{source:02}Z-aaa{source}00", number + 1);
                let root = [0; 100];
                objects.put(&key(&id, ROOT), &root, &PutIf::Always).unwrap();
            }
        }
        let portions = portions(&backup_files(&objects).unwrap(), limits);
        let letters = |ids: &Vec<String>| {
            let mut letters: Vec<String> =
                ids.iter().map(|id| source_letters(id).to_owned()).collect();
            letters.dedup();
            (ids.len(), letters)
        };
        portions.iter().map(letters).collect()
    }

    #[test]
    fn a_portion_has_whole_sources_as_long_as_they_fit() {
        let limits = PortionLimits {
            backups: 10,
            root_bytes: u64::MAX,
        };
        let letters = |of: &[usize]| -> Vec<String> {
            let ids = of.iter().map(|n| format!("20260101T000000Z-aaa{n}00"));
            ids.map(|id| source_letters(&id).to_owned()).collect()
        };
        let found = divided(&[4, 5, 3, 25, 1], limits);
        let wanted = [
            (9, letters(&[0, 1])),
            (3, letters(&[2])),
            (10, letters(&[3])),
            (10, letters(&[3])),
            (6, letters(&[3, 4])),
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn a_large_root_is_a_portion_of_its_own() {
        let limits = PortionLimits {
            backups: 10,
            root_bytes: 250,
        };
        let sizes = |limits| -> Vec<usize> {
            let found = divided(&[5], limits);
            found.into_iter().map(|(size, _)| size).collect()
        };
        assert_eq!(sizes(limits), [2, 2, 1]);
        let small = PortionLimits {
            root_bytes: 99,
            ..limits
        };
        assert_eq!(sizes(small), [1, 1, 1, 1, 1]);
    }

    #[test]
    fn damage_in_several_portions_is_told_once() {
        let damage = |what: &str, detail: &str| Damage {
            what: what.to_owned(),
            detail: vec![detail.to_owned()],
            files: Vec::new(),
        };
        let all = vec![
            damage("b", "1"),
            damage("a", "x"),
            damage("b", "2"),
            damage("b", "1"),
        ];
        let joined = joined(all);
        assert_eq!(joined.len(), 2);
        assert_eq!(joined[1].detail, ["1", "2"]);
    }
}
