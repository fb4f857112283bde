//! Room for the WAL that a server keeps for a backup. One whose disk is full stops, so the backup gives up before.

use super::{Session, void};
use crate::{
    error::Result,
    format::sizes,
    platform::{dir::open_root, write::free_bytes},
    postgres::lsn::Lsn,
};
use postgres::types::Type;
use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// For so long there must be room, as fast as WAL was written so far: what is given up is removed by the next checkpoint.
const LASTS: Duration = Duration::from_secs(120);

/// How fast that is, is known after so long; before, it is enough if there is room until then.
const KNOWN_AFTER: Duration = Duration::from_secs(10);

/// The disk that WAL is kept on.
#[derive(Debug)]
pub struct Room {
    directory: PathBuf,
    began: Instant,
    /// Bytes that were kept when it began: the slot holds all since the checkpoint before.
    first: Option<u64>,
}

impl Room {
    /// Of `directory`, from now on.
    pub fn of(directory: PathBuf) -> Self {
        Self {
            directory,
            began: Instant::now(),
            first: None,
        }
    }

    /// Is there room enough? What is not known is no reason to give up.
    ///
    /// # Errors
    /// That the backup is void, if it keeps more than there is room for and the rest will not last.
    pub(super) fn check(&mut self, session: &mut Session) -> Result<()> {
        let Some((kept, end)) = session.kept_bytes()? else {
            return Ok(());
        };
        let free = open_root(&self.directory).and_then(free_bytes);
        let free = free.map_or(u64::MAX, |free| {
            free.saturating_add(waiting_bytes(&self.directory, end))
        });
        let first = *self.first.get_or_insert(kept);
        let elapsed = self.began.elapsed();
        let per_second = kept.saturating_sub(first) / elapsed.as_secs().max(1);
        let lasts = if elapsed < KNOWN_AFTER {
            KNOWN_AFTER
        } else {
            LASTS
        };
        if kept <= free || free > per_second.saturating_mul(lasts.as_secs()) {
            return Ok(());
        }
        let [free, kept, per_second] =
            [free, kept, per_second].map(|bytes| bytes.div_ceil(1_000_000));
        Err(void("the server's disk would soon be full of the WAL that is kept for it")
            .detail(format!(
                "in {:?} {free} MB are free; the slot keeps {kept} MB, and {per_second} MB more each second",
                self.directory
            ))
            .hint("make room there, take WAL from the archive (--wal archived), or run it when less is written"))
    }
}

/// Bytes of the segments in `directory` behind `end`, which the server has made or used before and will write next.
fn waiting_bytes(directory: &Path, end: Lsn) -> u64 {
    let waits = |entry: fs::DirEntry| {
        let name = entry
            .file_name()
            .into_string()
            .ok()
            .filter(|name| name.len() == 24)?;
        let half = |at: usize| u64::from_str_radix(name.get(at..at + 8)?, 16).ok();
        let (bytes, high, low) = (entry.metadata().ok()?.len(), half(8)?, half(16)?);
        let number = (high << 32).checked_div(bytes)?.checked_add(low)?;
        (number > end.0 / bytes).then_some(bytes)
    };
    fs::read_dir(directory).map_or(0, |entries| sizes::sum(entries.flatten().filter_map(waits)))
}

impl Session {
    /// Bytes of WAL that the slot keeps, if there is one, and where it ends.
    fn kept_bytes(&mut self) -> Result<Option<(u64, Lsn)>> {
        let Some(slot) = self.slot.clone() else {
            return Ok(None);
        };
        let now = self.written();
        let sql = format!(
            "SELECT (SELECT pg_wal_lsn_diff({now}, restart_lsn)::int8 FROM pg_replication_slots WHERE slot_name = $1), \
                    {now}::text"
        );
        let row = self.row(
            "could not ask for the replication slot",
            &sql,
            &[(&slot, Type::NAME)],
        )?;
        let kept = row
            .get::<Option<i64>>(0)?
            .and_then(|bytes| u64::try_from(bytes).ok());
        let end = row.get::<Option<&str>>(1)?.map(str::parse).transpose()?;
        Ok(kept.zip(end))
    }

    /// Have the server remove what it kept, now if the role may say so.
    pub(super) fn make_room(&mut self) -> Result<()> {
        self.release_wal()?;
        self.rows("could not ask for a checkpoint", "CHECKPOINT", &[])
            .map(drop)
    }
}
