//! Check a part of a repository's data at a time: what was checked longest ago, or never, first.
//!
//! The unit is a part of a segment, 8 MiB and the frames that begin in it: they are compared with their checksum, if that is
//! known, and decoded. The structure of all backups is checked every time. What was checked and is whole is remembered in
//! the repository, if it can be written to.

use super::{
    Check, Tables, VerifyVerdict,
    data::{ContentCheck, DataWorker, StoredPart, checksum},
    losses::blame,
    seek_tables::SegmentFrames,
    until_final,
};
use crate::{
    archive::object::ObjectName,
    error::{Error, ErrorKind, Result},
    format::{page::FrameAt, sizes},
    metrics::meter::Meter,
    pipeline::workers,
    platform,
    queue::Locked,
    repo::{
        inventory::{SegmentPlace, known_frames, open_some},
        verify_memory::{DAMAGED, VerifyMemory},
    },
    report::damage::frame_damage,
    storage::{Found, Location, Objects},
};
use std::{
    collections::{HashMap, HashSet},
    ffi::OsString,
    num::NonZeroUsize,
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// How much to check.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SampleAmount {
    /// So much of all stored bytes, from 0 to 1.
    Share(f64),
    /// As much as can be done in this time.
    Time(Duration),
}

/// What to check.
#[derive(Debug, Clone)]
pub struct SampleVerify {
    /// The repository.
    pub repository: OsString,
    /// How much of it.
    pub amount: SampleAmount,
    /// Threads that read and decode.
    pub workers: NonZeroUsize,
}

/// How much was checked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sampled {
    /// Stored bytes that were checked now.
    pub bytes: u64,
    /// Stored bytes that there are.
    pub of_bytes: u64,
    /// Bytes that were never checked in this way.
    pub never_bytes: u64,
    /// Seconds since 1970 of the part that was checked longest ago.
    pub oldest: u64,
    /// Why it could not be remembered.
    pub forgotten: Option<String>,
}

impl SampleVerify {
    /// Do it.
    ///
    /// # Errors
    /// As [`Verify::run`](crate::verify::Verify::run); [`Kind::Usage`] if it is no repository.
    pub fn run(&self, meter: &Meter) -> Result<(VerifyVerdict, Sampled)> {
        let location = Location::parse(&self.repository)?;
        if !matches!(location.look(), Found::Repository | Found::Directory) {
            let what = format!(
                "cannot check a part of {:?}: it is no repository",
                self.repository
            );
            return Err(Error::new(ErrorKind::Usage, what).hint("leave out --sample and --for"));
        }
        let objects = location.objects()?;
        until_final(|| self.look(&objects, meter))
    }

    /// Look once; nothing if what was looked at was not there to the end.
    fn look(
        &self,
        objects: &Arc<dyn Objects>,
        meter: &Meter,
    ) -> Result<Option<(VerifyVerdict, Sampled)>> {
        let start = Instant::now();
        meter.entries.store(0, Relaxed);
        let (archives, no_roots) = open_some(objects)?;
        let check = Check::new(archives, Some(&**objects), false, meter);
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
        let sampled = remember(&**objects, &check, covered, &all(&check, &tables), &checked);
        let verdict = check.verdict(lost, start);
        Ok(check
            .is_final(&verdict, &**objects)?
            .then_some((verdict, sampled)))
    }

    /// What to check, in order, as far as a share goes.
    fn parts(&self, check: &Check<'_>, tables: &Tables, covered: &VerifyMemory) -> Vec<StoredPart> {
        let mut parts = all(check, tables);
        let when =
            |part: &StoredPart| covered.when(&check.stock.segments[part.place].id, part.index);
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

    /// The parts that were checked, and whether they are whole.
    fn parts_checked(
        &self,
        check: &Check<'_>,
        tables: &Tables,
        parts: &[StoredPart],
    ) -> Result<Checked> {
        let start = Instant::now(); // the structure of all is not a part
        let checked = Mutex::new(Checked::new());
        let Check {
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
        };
        let each = |hand: &mut DataWorker, part: &StoredPart| {
            let is_known = checksum(&stock.segments[part.place], part.index).is_some();
            let is_right = !is_known || content.part(hand, part)?;
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

/// Parts, and whether they are whole.
type Checked = HashMap<StoredPart, bool>;

/// Every part, of segments that are there, that has a checksum or frames.
fn all(check: &Check<'_>, tables: &Tables) -> Vec<StoredPart> {
    let places = check.stock.segments.iter().enumerate();
    let there = places.filter(|(_, place)| !check.bad.has(&place.id, 0));
    let parts = there.flat_map(|(at, place)| {
        let table = tables.frames.get(&place.id);
        let has_frames =
            move |(from, to)| table.is_some_and(|table| !table.within(from, to).is_empty());
        // What the root says may be any number. If the file is shorter, the first part that is not there shows it.
        let archive = &check.stock.archives[place.archive];
        let len = archive
            .store()
            .len(&ObjectName::Segment(place.id.clone()))
            .unwrap_or(0);
        let sealing = archive.store().sealing();
        let most = sealing.stored_bytes(place.bytes);
        let there = sealing.stored_bytes(len);
        let parts = (0..).map(move |index| StoredPart { place: at, index });
        let within = parts.take_while(move |part| {
            let from = part.stored_span(&check.stock).0;
            from < most && from <= there
        });
        within.filter(move |part| {
            checksum(place, part.index).is_some() || has_frames(part.plain_span(&check.stock))
        })
    });
    parts.collect()
}

/// Of segments of which neither checksums nor a seek table is known, the frames that records speak of: so it is where the
/// document of a backup that died or was forgotten is damaged.
fn add_loose(check: &Check<'_>, tables: &mut Tables) {
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
        .map(|(id, frames)| (id, SegmentFrames::Table(frames.into_iter().collect())));
    tables.frames.extend(found);
}

fn bytes(check: &Check<'_>, part: &StoredPart) -> u64 {
    let (from, to) = part.stored_span(&check.stock);
    to - from
}

/// Decode the frames that begin in a part; are all of them whole?
fn frames(
    content: &ContentCheck<'_>,
    tables: &Tables,
    hand: &mut DataWorker,
    part: &StoredPart,
) -> Result<bool> {
    let place = &content.stock.segments[part.place];
    let archive = &content.stock.archives[place.archive];
    let (from, to) = part.plain_span(content.stock);
    let Some(table) = tables.frames.get(&place.id) else {
        return Ok(true);
    };
    let mut all_whole = true;
    for (offset, stored_len, plain_len) in table
        .within(from, to)
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

/// What is damaged is looked at again the next time, and takes nothing of the share then.
fn remember(
    objects: &dyn Objects,
    check: &Check<'_>,
    mut covered: VerifyMemory,
    all: &[StoredPart],
    checked: &Checked,
) -> Sampled {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let id = |part: &StoredPart| &check.stock.segments[part.place].id;
    for (part, is_whole) in checked {
        covered.note(id(part), part.index, if *is_whole { now } else { DAMAGED });
    }
    let present: HashSet<_> = check.stock.segments.iter().map(|place| &place.id).collect();
    covered.retain(|segment| present.contains(segment));
    let forgotten = covered.write(objects).err().map(|error| error.line());
    forgotten
        .iter()
        .for_each(|why| platform::debug(|| why.clone()));
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
