//! Check a part of a repository's data at a time: what was checked longest ago, or never, first.
//!
//! The unit is a part of a segment, 8 MiB that have a checksum, and the frames that begin in it. The structure of all backups
//! is checked every time. What was checked is remembered in the repository, if it can be written to.

use super::{
    blame::blame,
    content::{Content, Hand, Part, checksum, span},
    crew,
    damage::frame_damage,
    verify::{Check, Tables, Verdict, open_for_check},
};
use crate::{
    error::{Error, Kind, Result},
    format::page::FrameAt,
    pipeline::meter::Meter,
    platform,
    repo::{covered::Covered, open::is_repository},
};
use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// How much to check.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Amount {
    /// So much of all stored bytes, from 0 to 1.
    Share(f64),
    /// As much as can be done in this time.
    Time(Duration),
}

/// What to check.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The repository.
    pub repository: PathBuf,
    /// How much of it.
    pub amount: Amount,
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

impl Sample {
    /// Do it.
    ///
    /// # Errors
    /// As [`Verify::run`](super::verify::Verify::run); [`Kind::Usage`] if it is no repository.
    pub fn run(&self, meter: &Meter) -> Result<(Verdict, Sampled)> {
        if !is_repository(&self.repository.to_string_lossy()) {
            let what = format!("cannot check a part of {:?}: it is no repository", self.repository);
            return Err(Error::new(Kind::Usage, what).hint("leave out --sample and --for"));
        }
        let start = Instant::now();
        let (archives, no_roots) = open_for_check(&self.repository)?;
        let check = Check::new(archives, Some(&self.repository), false, meter);
        let mut lost = no_roots.into_iter().map(|(id, error)| check.no_root(id, error)).collect::<Result<Vec<_>>>()?;
        let tables = check.structure(self.workers)?;
        let covered = Covered::read(&self.repository);
        let parts = self.parts(&check, &covered);
        let checked = self.parts_checked(&check, &tables, &parts, start)?;
        lost.extend(blame(&check.stock, &check.bad, &check.report));
        let sampled = remember(&self.repository, &check, covered, checked);
        Ok((check.verdict(lost, start), sampled))
    }

    /// What to check, in order, as far as a share goes.
    fn parts(&self, check: &Check<'_>, covered: &Covered) -> Vec<Part> {
        let mut parts = all(check);
        parts.sort_by_key(|part| {
            (covered.when(&check.stock.segments[part.place].id, part.index), part.place, part.index)
        });
        let Amount::Share(share) = self.amount else { return parts };
        let total: u64 = parts.iter().map(|part| bytes(check, part)).sum();
        let (wanted, mut taken) = ((total as f64 * share).ceil() as u64, 0);
        parts.retain(|part| {
            let take = taken < wanted;
            taken += if take { bytes(check, part) } else { 0 };
            take
        });
        parts
    }

    fn parts_checked(&self, check: &Check<'_>, tables: &Tables, parts: &[Part], start: Instant) -> Result<Vec<Part>> {
        let checked = Mutex::new(Vec::new());
        let Check { stock, bad, report, meter, .. } = check;
        let content = Content { stock, bad, report, meter };
        let each = |hand: &mut Hand, part: &Part| {
            content.part(hand, part)?;
            frames(&content, tables, hand, part)?;
            checked.lock().unwrap_or_else(|e| e.into_inner()).push(part.clone());
            Ok(())
        };
        let is_over = || matches!(self.amount, Amount::Time(time) if start.elapsed() >= time);
        crew::work(self.workers, Hand::default, each, |send| {
            parts.iter().take_while(|_| !is_over()).try_for_each(send)
        })?;
        Ok(checked.into_inner().unwrap_or_else(|e| e.into_inner()))
    }
}

/// Every part that has a checksum, of segments that are there.
fn all(check: &Check<'_>) -> Vec<Part> {
    let places = check.stock.segments.iter().enumerate();
    let there = places.filter(|(_, place)| !check.bad.has(&place.id, 0));
    let parts = there.flat_map(|(at, place)| {
        let known = (0..).take_while(|index| checksum(place, *index).is_some());
        known.map(move |index| Part { place: at, index })
    });
    parts.collect()
}

fn bytes(check: &Check<'_>, part: &Part) -> u64 {
    let (from, to) = span(&check.stock.segments[part.place], part.index);
    to - from
}

/// Decode the frames that begin in a part.
fn frames(content: &Content<'_>, tables: &Tables, hand: &mut Hand, part: &Part) -> Result<()> {
    let place = &content.stock.segments[part.place];
    let archive = &content.stock.archives[place.archive];
    let (from, to) = span(place, part.index);
    let Some(table) = tables.frames.get(&place.id) else { return Ok(()) };
    for (offset, stored_len, plain_len) in table.within(from, to).iter().copied().filter(|(.., plain)| *plain > 0) {
        let frame = FrameAt { segment: 0, offset, stored_len, plain_len };
        if let Err(error) = hand.decode(archive, &place.id, &frame)
            && content.bad.frame(&place.id, offset)
        {
            let (error, _) = frame_damage(archive, &(place.id.clone(), frame), error, Vec::new());
            content.report.add((Error { detail: Vec::new(), ..error }, Vec::new()))?;
        }
    }
    Ok(())
}

fn remember(repository: &Path, check: &Check<'_>, mut covered: Covered, checked: Vec<Part>) -> Sampled {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let id = |part: &Part| &check.stock.segments[part.place].id;
    checked.iter().for_each(|part| covered.note(id(part), part.index, now));
    covered.retain(|segment| check.stock.segments.iter().any(|place| place.id == *segment));
    let forgotten = covered.write(repository).err().map(|error| error.line());
    forgotten.iter().for_each(|why| platform::debug(|| why.clone()));
    let all = all(check);
    let times = |part: &&Part| covered.when(id(part), part.index);
    Sampled {
        bytes: checked.iter().map(|part| bytes(check, part)).sum(),
        of_bytes: all.iter().map(|part| bytes(check, part)).sum(),
        never_bytes: all.iter().filter(|part| times(part) == 0).map(|part| bytes(check, part)).sum(),
        oldest: all.iter().map(|part| times(&part)).filter(|time| *time > 0).min().unwrap_or(now),
        forgotten,
    }
}
