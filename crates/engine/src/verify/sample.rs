//! Checks a share of a repository's data at a time: the parts that were never checked first, then
//! those checked longest ago.
//!
//! The unit is a part of a segment, 8 MiB and the frames that begin in it. A part is compared with
//! its checksum, if that is known, and its frames are decoded. The structure of all backups is
//! checked every time. Intact parts are recorded in the repository, if it can be written to.

use super::{
    RunningCheck, SegmentTables, VerifyVerdict,
    data::{ContentCheck, DataWorker, StoredPart, checksum},
    losses::blame,
    seek_tables::SegmentFrames,
    until_final,
};
use crate::report::damage::frame_damage;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    page::FrameAt,
    sizes,
};
use fullbore_pipeline::workers;
use fullbore_platform as platform;
use fullbore_platform::{metrics::meter::Meter, queue::Locked};
use fullbore_repository::{
    archive::object::ObjectName,
    inventory::{SegmentPlace, known_frames, open_some},
    open::place,
    shard::Shard,
    verify_memory::{DAMAGED, VerifyMemory},
};
use fullbore_storage::{Found, Location, Objects, Storages};
use std::{
    collections::{HashMap, HashSet},
    ffi::OsString,
    num::NonZeroUsize,
    ops::Range,
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// How much to check.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SampleAmount {
    /// This share of all stored bytes, from 0 to 1.
    Share(f64),
    /// As much as can be checked in this time.
    Time(Duration),
}

/// The options of a check of a share.
#[derive(Debug, Clone)]
pub struct SampleVerify {
    /// How storages are reached.
    pub storages: Storages,
    /// The repository.
    pub repository: OsString,
    /// How much of it to check.
    pub amount: SampleAmount,
    /// The share of the data of which a part is checked; `None` for all.
    pub shard: Option<Shard>,
    /// Threads that read and decode.
    pub workers: NonZeroUsize,
}

/// The extent of the check.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sampled {
    /// Stored bytes that were checked now.
    pub bytes: u64,
    /// All stored bytes.
    pub of_bytes: u64,
    /// Bytes that were never checked by a sample.
    pub never_bytes: u64,
    /// When the part that was checked longest ago was checked, in seconds since 1970.
    pub oldest: u64,
    /// Why the check could not be recorded.
    pub forgotten: Option<String>,
}

impl SampleVerify {
    /// Runs the check.
    ///
    /// # Errors
    /// As [`Verify::run`](crate::verify::Verify::run); [`ErrorKind::Usage`] if FROM is not a repository.
    pub fn run(&self, meter: &Meter) -> Result<(VerifyVerdict, Sampled)> {
        let location = Location::parse(&self.repository)?;
        if location.look() == Found::Nothing {
            place(&self.repository)?;
        }
        if !matches!(location.look(), Found::Repository | Found::Directory) {
            let message = format!(
                "cannot check a part of {:?}: it is not a repository",
                self.repository
            );
            return Err(
                Error::new(ErrorKind::Usage, message).hint("run it without --sample and --for")
            );
        }
        let objects = self.storages.objects(&location)?;
        until_final(|| self.look(&objects, meter))
    }

    /// Checks once; returns `None` if a checked backup was forgotten meanwhile.
    fn look(
        &self,
        objects: &Arc<dyn Objects>,
        meter: &Meter,
    ) -> Result<Option<(VerifyVerdict, Sampled)>> {
        let start = Instant::now();
        // A second look counts again.
        meter.entries.store(0, Relaxed);
        let (archives, no_roots) = open_some(objects)?;
        let check =
            RunningCheck::new(archives, Some(&**objects), false, meter).with_shard(self.shard);
        let mut lost = no_roots
            .into_iter()
            .map(|(id, error)| check.no_root(id, error))
            .collect::<Result<Vec<_>>>()?;
        let mut tables = check.structure(self.workers)?;
        add_loose(&check, &mut tables);
        let covered = VerifyMemory::read(&**objects);
        let parts = self.parts(&check, &tables, &covered);
        let checked = self.parts_checked(&check, &tables, &parts)?;
        lost.extend(blame(&check.stock, &check.bad, &check.report));
        let known = (covered, all(&check, &tables));
        let verdict = check.verdict(lost, start);
        let sampled = remember(&**objects, &check, known, &verdict, &checked);
        Ok(check
            .is_final(&verdict, &**objects)?
            .then_some((verdict, sampled)))
    }

    /// Returns the parts to check, in order, up to the requested share.
    fn parts(
        &self,
        check: &RunningCheck<'_>,
        tables: &SegmentTables,
        covered: &VerifyMemory,
    ) -> Vec<StoredPart> {
        let mut parts = all(check, tables);
        let when =
            |part: &StoredPart| covered.when(&check.stock.segments[part.place].id, part.index);
        // Parts that were checked longest ago come first, so that repeated samples reach all parts.
        parts.sort_by_key(|part| (when(part) != DAMAGED, when(part), part.place, part.index));
        let SampleAmount::Share(share) = self.amount else {
            return parts;
        };
        let total = sizes::sum(parts.iter().map(|part| bytes(check, part)));
        let (wanted, mut taken) = ((total as f64 * share).ceil() as u64, 0);
        parts.retain(|part| {
            let is_damaged = when(part) == DAMAGED;
            let take = is_damaged || taken < wanted;
            sizes::add(
                &mut taken,
                if take && !is_damaged {
                    bytes(check, part)
                } else {
                    0
                },
            );
            take
        });
        parts
    }

    /// Returns the checked parts, and whether they are intact.
    fn parts_checked(
        &self,
        check: &RunningCheck<'_>,
        tables: &SegmentTables,
        parts: &[StoredPart],
    ) -> Result<CheckedParts> {
        let start = Instant::now(); // the structure of all backups does not count as a part
        let checked = Mutex::new(CheckedParts::new());
        let RunningCheck {
            stock,
            bad,
            report,
            meter,
            ..
        } = check;
        let content = ContentCheck {
            stock,
            bad,
            report,
            meter,
            shard: self.shard,
        };
        let each = |hand: &mut DataWorker, part: &StoredPart| {
            let is_known = checksum(&stock.segments[part.place], part.index).is_some();
            let is_right =
                !is_known || content.part(hand, part, &frames_at(&content, tables, part))?;
            let is_whole = frames(&content, tables, hand, part)? && is_right;
            checked.locked().insert(part.clone(), is_whole);
            Ok(())
        };
        let is_over = || matches!(self.amount, SampleAmount::Time(time) if start.elapsed() >= time);
        workers::work(&self.workers.into(), DataWorker::default, each, |send| {
            parts.iter().take_while(|_| !is_over()).try_for_each(send)
        })?;
        Ok(checked.opened())
    }
}

/// Parts, and whether they are intact.
type CheckedParts = HashMap<StoredPart, bool>;

/// Returns every part, of segments that exist, that has a checksum or frames.
fn all(check: &RunningCheck<'_>, tables: &SegmentTables) -> Vec<StoredPart> {
    let places = check.stock.segments.iter().enumerate();
    let there = places.filter(|(_, place)| !check.bad.has(&place.id, 0));
    let parts = there.flat_map(|(number, place)| {
        let table = tables.frames.get(&place.id);
        let has_frames =
            move |(begin, end)| table.is_some_and(|table| !table.within(begin, end).is_empty());
        // The size in the root is not trusted. If the file is shorter, the first missing part shows
        // that.
        let archive = &check.stock.archives[place.archive];
        let len = archive
            .store()
            .len(&ObjectName::Segment(place.id.clone()))
            .unwrap_or(0);
        let sealing = archive.store().sealing();
        let most = sealing.stored_bytes(place.bytes);
        let there = sealing.stored_bytes(len);
        let parts = (0..).map(move |index| StoredPart {
            place: number,
            index,
        });
        let present = parts.take_while(move |part| {
            let start = part.stored_span(&check.stock).0;
            start < most && start <= there
        });
        present.filter(move |part| {
            let is_wanted = check
                .shard
                .is_none_or(|shard| shard.has_part(&place.id, part.index));
            is_wanted
                && (checksum(place, part.index).is_some()
                    || has_frames(part.plain_span(&check.stock)))
        })
    });
    parts.collect()
}

/// Adds the frames that records refer to, for segments without known checksums and seek table. That
/// is so if the document of a dead or forgotten backup is damaged.
fn add_loose(check: &RunningCheck<'_>, tables: &mut SegmentTables) {
    let is_loose = |place: &&SegmentPlace| {
        place.parts.is_empty()
            && matches!(tables.frames.get(&place.id), Some(SegmentFrames::Within(_)))
    };
    let loose = check
        .stock
        .segments
        .iter()
        .filter(is_loose)
        .map(|place| place.id.clone());
    let loose = known_frames(&check.stock.archives, loose);
    let found = loose
        .into_iter()
        .map(|(id, frames)| (id, SegmentFrames::FrameTable(frames.into_iter().collect())));
    tables.frames.extend(found);
}

fn bytes(check: &RunningCheck<'_>, part: &StoredPart) -> u64 {
    let (start, end) = part.stored_span(&check.stock);
    end - start
}

/// Returns the stored bytes that the frames have that begin in a part.
fn frames_at(content: &ContentCheck<'_>, tables: &SegmentTables, part: &StoredPart) -> Range<u64> {
    let place = &content.stock.segments[part.place];
    let sealing = content.stock.archives[place.archive].store().sealing();
    let (start, stop) = part.plain_span(content.stock);
    let frames = tables.frames.get(&place.id);
    let last = frames.and_then(|table| table.within(start, stop).last());
    let begin = part.stored_span(content.stock).0;
    let end = last.map_or(0, |(offset, stored_len, _)| {
        let end = offset.saturating_add(u64::from(*stored_len));
        sealing.stored_range((*offset, end)).1
    });
    begin..end
}

/// Decodes the frames that begin in a part, and returns whether all are intact.
fn frames(
    content: &ContentCheck<'_>,
    tables: &SegmentTables,
    hand: &mut DataWorker,
    part: &StoredPart,
) -> Result<bool> {
    let place = &content.stock.segments[part.place];
    let archive = &content.stock.archives[place.archive];
    let (start, end) = part.plain_span(content.stock);
    let Some(table) = tables.frames.get(&place.id) else {
        return Ok(true);
    };
    let mut all_whole = true;
    for (offset, stored_len, plain_len) in table
        .within(start, end)
        .iter()
        .copied()
        .filter(|(.., plain)| *plain > 0)
    {
        let frame = FrameAt {
            segment: 0,
            offset,
            stored_len,
            plain_len,
        };
        let (error, is_out) = match hand.salvage(archive, &place.id, &frame) {
            Ok(None) => continue,
            Ok(Some(error)) => (error, true),
            Err(error) => (error, false),
        };
        all_whole = false;
        if content.bad.frame(&place.id, &frame, is_out) {
            content.report.mark_damaged_backup(&place.id.backup);
            let (error, _) = frame_damage(archive, &(place.id.clone(), frame), error, Vec::new());
            content.report.add((
                Error {
                    detail: Vec::new(),
                    ..error
                },
                Vec::new(),
            ))?;
        }
    }
    Ok(all_whole)
}

/// Records the checked parts. Damaged parts are checked again the next time, in addition to the
/// share. `known` are the memory before the check, and all parts.
fn remember(
    objects: &dyn Objects,
    check: &RunningCheck<'_>,
    known: (VerifyMemory, Vec<StoredPart>),
    found: &VerifyVerdict,
    checked: &CheckedParts,
) -> Sampled {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let id = |part: &StoredPart| &check.stock.segments[part.place].id;
    let present: HashSet<_> = check.stock.segments.iter().map(|place| &place.id).collect();
    let is_listed = |id: &str| {
        let mut archives = check.stock.archives.iter();
        archives.any(|archive| archive.root.id == id)
    };
    let ids = check.stock.archives.iter().map(|archive| &*archive.root.id);
    let newest = ids.max().unwrap_or_default();
    let is_newer = |id: &str| id > newest;
    let change = |memory: &mut VerifyMemory| {
        for loss in &found.lost {
            memory.note_loss(&loss.backup, loss.files.len() as u64);
        }
        // Without a key it is not known which files are lost.
        let damaged = found.damaged.iter().filter(|_| found.is_locked);
        damaged.for_each(|id| memory.note_loss(id, 0));
        for (part, is_whole) in checked {
            memory.note(id(part), part.index, if *is_whole { now } else { DAMAGED });
        }
        // Pruned segments are removed from the memory, which would otherwise only grow. Somebody else may have checked newer ones.
        memory.retain(
            |segment| present.contains(segment) || is_newer(&segment.backup),
            |id| is_listed(id) || is_newer(id),
        );
    };
    let (before, all) = known;
    let updated = VerifyMemory::update(objects, change);
    let forgotten = updated.as_ref().err().map(Error::line);
    forgotten
        .iter()
        .for_each(|why| platform::debug(|| why.clone()));
    let covered = updated.unwrap_or_else(|_| {
        let mut covered = before;
        change(&mut covered);
        covered
    });
    let times = |part: &&StoredPart| covered.when(id(part), part.index);
    let never = all
        .iter()
        .filter(|part| times(part) == 0 && !checked.contains_key(part));
    Sampled {
        bytes: sizes::sum(checked.keys().map(|part| bytes(check, part))),
        of_bytes: sizes::sum(all.iter().map(|part| bytes(check, part))),
        never_bytes: sizes::sum(never.map(|part| bytes(check, part))),
        oldest: all
            .iter()
            .map(|part| times(&part))
            .filter(|time| *time > DAMAGED)
            .min()
            .unwrap_or(now),
        forgotten,
    }
}
