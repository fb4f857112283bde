//! The words behind `@` that choose a backup: `latest`, `latest~2`, a time, or the beginning of an id.

use super::{
    counted::{counted_backups, counted_lost_roots, with_later_backups},
    listed::{backup_ids, one_of},
    retention::span,
    roots::{self, BackupState, key},
    scan::{lost_root, lost_roots},
    select::{BackupFilter, SourceList},
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::{self, is_backup_id},
    root::VOID_ROOT_BYTES,
};
use fullbore_storage::Objects;
use jiff::{SignedDuration, Span, Timestamp, ToSpan, Zoned, civil::Date, civil::DateTime};
use std::sync::Arc;

pub use super::from_word::LATEST;

/// How a backup is chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackupSelector {
    /// The latest backup, or the one so many before it.
    Back(usize),
    /// The newest backup that began in this time or before.
    At(TimeSpan),
    /// The newest backup that began so long ago or before.
    Ago(Timestamp),
    /// An id, or the beginning of one.
    Id(String),
}

/// A day, a minute or a moment: its first and its last instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeSpan {
    /// The first instant.
    pub begin: Timestamp,
    /// The last instant.
    pub end: Timestamp,
}

impl TimeSpan {
    pub fn holds(&self, time: Timestamp) -> bool {
        (self.begin..=self.end).contains(&time)
    }
}

impl BackupSelector {
    /// Parses the text behind `@`. Times are those of the time zone of `now`: a date means its end, a minute its end, and `2d`
    /// means two days before `now`. Any other text is an id.
    pub fn parse(text: &str, now: &Zoned) -> Self {
        if text == LATEST {
            return Self::Back(0);
        }
        let back = text
            .strip_prefix(LATEST)
            .and_then(|rest| rest.strip_prefix('~'));
        if let Some(back) = back.and_then(|back| back.parse().ok()) {
            return Self::Back(back);
        }
        let ago = clear_span(text).and_then(|span| now.checked_sub(span).ok());
        let ago = ago.map(|time| Self::Ago(time.timestamp()));
        ago.or_else(|| time(text, now).map(Self::At))
            .unwrap_or_else(|| Self::Id(text.to_owned()))
    }

    /// Returns the last moment at which the chosen backup may have begun.
    fn limit(&self) -> Option<Timestamp> {
        match self {
            Self::At(span) => Some(span.end),
            Self::Ago(limit) => Some(*limit),
            Self::Back(_) | Self::Id(_) => None,
        }
    }
}

/// Returns the time ago that a text means: as a rule of retention has it, but for `mo` in place of `m`, or `30min`.
///
/// `m` alone is months there and minutes in other options: it is no time here, and [`one_of`] says so.
fn clear_span(text: &str) -> Option<Span> {
    if let Some(minutes) = text.strip_suffix("min") {
        return Span::new().try_minutes(minutes.parse::<u32>().ok()?).ok();
    }
    match text.replace("mo", "") {
        rest if rest.contains('m') => None,
        _ => span(&text.replace("mo", "m")),
    }
}

/// Returns the time that a text means.
fn time(text: &str, now: &Zoned) -> Option<TimeSpan> {
    let day = |date: Date| {
        let next = begin_of_day(now, date.tomorrow().ok()?)?;
        let end = next.checked_sub(1.nanosecond()).ok()?;
        let begin = begin_of_day(now, date)?;
        Some(TimeSpan { begin, end })
    };
    match text {
        "today" => return day(now.date()),
        "yesterday" => return day(now.date().yesterday().ok()?),
        _ => {}
    }
    // An id begins with the digits of a date, without hyphens.
    if text.len() < 10 || text.as_bytes()[4] != b'-' {
        return None;
    }
    if text.len() == 10 {
        return day(text.parse().ok()?);
    }
    if let Ok(time) = text.parse::<Timestamp>() {
        return Some(TimeSpan {
            begin: time,
            end: time,
        });
    }
    let local: DateTime = text.parse().ok()?;
    let begin = local.to_zoned(now.time_zone().clone()).ok()?.timestamp();
    let length = match text.matches(':').count() {
        1 => SignedDuration::from_nanos(59_999_999_999),
        _ => SignedDuration::ZERO,
    };
    let end = begin.checked_add(length).ok()?;
    Some(TimeSpan { begin, end })
}

fn begin_of_day(now: &Zoned, date: Date) -> Option<Timestamp> {
    let begin = date.to_zoned(now.time_zone().clone()).ok()?;
    Some(begin.timestamp())
}

/// A backup that may be chosen, or one whose root cannot be read.
struct DatedBackup {
    id: String,
    /// `None` if the root cannot be read.
    time: Option<Timestamp>,
}

impl BackupFilter {
    /// Returns the id of the backup that `selector` chooses among the selected ones.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the backups have several sources; [`ErrorKind::NotFound`] if there is no such backup;
    /// [`ErrorKind::Corrupt`] if a root that cannot be read may be the one.
    pub(super) fn choose(
        &self,
        objects: &Arc<dyn Objects>,
        selector: &BackupSelector,
    ) -> Result<String> {
        if *selector == BackupSelector::Back(0) {
            return self.latest(objects);
        }
        let limit = selector.limit();
        let in_time = |time: Timestamp| limit.is_none_or(|limit| time <= limit);
        let mut sources = SourceList::default();
        let mut all = Vec::new();
        let mut oldest = None;
        for (id, root) in counted_backups(objects)? {
            let Ok(mut root) = root else {
                all.push(DatedBackup { id, time: None });
                continue;
            };
            let time = root.time.parse::<Timestamp>().ok();
            if !self.selects_in(objects, &mut root) {
                continue;
            }
            oldest = oldest.map_or_else(
                || Some(id.clone()),
                |known: String| Some(known.min(id.clone())),
            );
            if time.is_some_and(in_time) {
                sources.add(&root);
                all.push(DatedBackup { id, time });
            }
        }
        if let Some(narrowed) = self.narrowed(&sources) {
            return narrowed.choose(objects, selector);
        }
        self.must_be_one(&sources, objects)?;
        let lost = counted_lost_roots(objects)?.into_iter();
        all.extend(lost.map(|id| DatedBackup { id, time: None }));
        all.sort_by(|a, b| a.id.cmp(&b.id));
        // A root that cannot be read has the time of its id; without one it may be the backup that is meant.
        all.retain(|one| one.time.is_some() || id_time(&one.id).is_none_or(in_time));
        let back = match selector {
            BackupSelector::Back(back) => *back,
            _ => 0,
        };
        let readable = all.iter().filter(|one| one.time.is_some());
        let chosen = readable.rev().nth(back);
        // Nothing before a damaged root is taken in silence for the backup that is meant.
        let lower = chosen.map_or("", |chosen| &chosen.id);
        match all
            .iter()
            .find(|one| one.time.is_none() && one.id.as_str() > lower)
        {
            Some(lost) => Err(lost_root(&format!(
                "the root of backup {:?}, which may be the one, cannot be read",
                lost.id
            ))),
            None => chosen
                .map(|chosen| chosen.id.clone())
                .ok_or_else(|| none_chosen(selector, &**objects, oldest))
                .map_err(|error| with_later_backups(objects, error)),
        }
    }
}

/// Returns the id of the wanted backup: the named one, or the latest that `filter` selects.
pub fn pick(
    objects: &Arc<dyn Objects>,
    backup: Option<&str>,
    filter: &BackupFilter,
) -> Result<String> {
    let Some(wanted) = backup else {
        return filter.latest(objects);
    };
    let wanted = match BackupSelector::parse(wanted, &Zoned::now()) {
        BackupSelector::Id(_) => wanted,
        selector => return filter.choose(objects, &selector),
    };
    // One request is enough for a whole id.
    if is_backup_id(wanted) && is_listed(&**objects, wanted)? {
        return Ok(wanted.to_owned());
    }
    let ids = backup_ids(&**objects)?;
    let lost = lost_roots(objects)?
        .into_iter()
        .rfind(|lost| lost.starts_with(wanted));
    match (one_of(&ids, wanted, &**objects), lost) {
        (Err(error), Some(lost)) if error.kind == ErrorKind::NotFound => {
            Err(lost_root(&format!("the root of backup {lost:?} is lost")))
        }
        (picked, _) => picked,
    }
}

/// Returns whether a root exists, readable or not. A void root does not count.
fn is_listed(objects: &dyn Objects, id: &str) -> Result<bool> {
    match objects.stat(&key(id, layout::ROOT)) {
        Ok(Some(VOID_ROOT_BYTES)) => Ok(roots::state(objects, id)? == Some(BackupState::Listed)),
        Ok(bytes) => Ok(bytes.is_some()),
        Err(error) if error.kind == ErrorKind::Corrupt => Ok(true),
        Err(error) => Err(error),
    }
}

/// Returns the time in an id: `20261125T185348Z-pwdtl7`.
pub(super) fn id_time(id: &str) -> Option<Timestamp> {
    if !is_backup_id(id) {
        return None;
    }
    let time = DateTime::strptime("%Y%m%dT%H%M%SZ", id.split('-').next()?).ok()?;
    let time = time.to_zoned(jiff::tz::TimeZone::UTC).ok()?;
    Some(time.timestamp())
}

fn none_chosen(selector: &BackupSelector, objects: &dyn Objects, oldest: Option<String>) -> Error {
    let repository = objects.describe("");
    let message = match selector.limit() {
        Some(limit) => {
            let time = limit.to_zoned(jiff::tz::TimeZone::system());
            let time = time.strftime("%Y-%m-%d %H:%M:%S %:z");
            format!("could not find a backup of {time} or before in {repository}")
        }
        None => format!("could not find so many backups in {repository}"),
    };
    let error = Error::new(ErrorKind::NotFound, message).hint("`fullbore list` shows all backups");
    match oldest {
        Some(oldest) => error.detail(format!("the oldest is {oldest:?}")),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_times_are_read_in_the_time_zone() {
        let now: Zoned = "2026-11-25T19:53:48+01:00[Europe/Berlin]".parse().unwrap();
        let span = |begin: &str, end: &str| {
            let [begin, end] = [begin, end].map(|time| time.parse().unwrap());
            BackupSelector::At(TimeSpan { begin, end })
        };
        let day = |before: &str, date: &str| {
            let begin = format!("{before}T23:00:00Z");
            span(&begin, &format!("{date}T22:59:59.999999999Z"))
        };
        let second = |time: &str| span(time, time);
        let ago = |time: &str| BackupSelector::Ago(time.parse().unwrap());
        let cases = [
            ("latest", BackupSelector::Back(0)),
            ("latest~1", BackupSelector::Back(1)),
            ("today", day("2026-11-24", "2026-11-25")),
            ("yesterday", day("2026-11-23", "2026-11-24")),
            (
                "2026-07-01",
                span("2026-06-30T22:00:00Z", "2026-07-01T21:59:59.999999999Z"),
            ),
            (
                "2026-11-25T12:30",
                span("2026-11-25T11:30:00Z", "2026-11-25T11:30:59.999999999Z"),
            ),
            ("2026-11-25 12:30:05", second("2026-11-25T11:30:05Z")),
            ("2026-11-25T12:30:05Z", second("2026-11-25T12:30:05Z")),
            ("2d", ago("2026-11-23T18:53:48Z")),
            ("1w12h", ago("2026-11-18T06:53:48Z")),
        ];
        for (text, selector) in cases {
            assert_eq!(BackupSelector::parse(text, &now), selector, "{text}");
        }
        for id in [
            "20261125T185348Z-pwdtl7",
            "2026",
            "latest~x",
            "2026-11-99",
            "late",
            "",
        ] {
            let id_of = BackupSelector::Id(id.to_owned());
            assert_eq!(BackupSelector::parse(id, &now), id_of);
        }
        assert_eq!(
            id_time("20261125T185348Z-pwdtl7"),
            "2026-11-25T18:53:48Z".parse().ok()
        );
    }
}
