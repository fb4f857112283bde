//! Watches the disk space for the WAL that a server keeps for a backup.
//!
//! A server whose disk is full stops, so the backup gives up before.

use super::{Session, void_backup};
use crate::lsn::Lsn;
use fullbore_format::{error::Result, sizes};
use fullbore_platform::{dir::open_root, write::free_bytes};
use postgres::types::Type;
use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// There must be room for so long, at the rate of WAL so far: the next checkpoint removes the WAL
/// of a backup that gave up.
const LASTING: Duration = Duration::from_secs(120);

/// The rate counts after so long; before, it is enough if there is room until then.
const KNOWN_AFTER: Duration = Duration::from_secs(10);

/// The disk that holds the WAL.
#[derive(Debug)]
pub struct WalSpace {
    directory: PathBuf,
    began: Instant,
    /// Bytes kept at the start: the slot holds all since the checkpoint before.
    first: Option<u64>,
}

impl WalSpace {
    /// Watches the disk of `directory` from now on.
    pub fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            began: Instant::now(),
            first: None,
        }
    }

    /// Checks that there is enough room. Unknown figures are no reason to give up.
    ///
    /// # Errors
    /// The backup is void, if the slot keeps more than there is room for and the rest will not
    /// last.
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
        // The rate of the first seconds says little, so less is concluded from it.
        let lasts = if elapsed < KNOWN_AFTER {
            KNOWN_AFTER
        } else {
            LASTING
        };
        if kept <= free || free > per_second.saturating_mul(lasts.as_secs()) {
            return Ok(());
        }
        let [free, kept, per_second] =
            [free, kept, per_second].map(|bytes| bytes.div_ceil(1_000_000));
        Err(void_backup("the server's disk would soon be full of the WAL kept for the backup")
            .detail(format!(
                "in {:?} {free} MB are free; the slot keeps {kept} MB, and {per_second} MB more \
                    each second",
                self.directory
            ))
            .hint("make room there, take WAL from the archive (--wal archived), or run the backup \
                when the server writes less"))
    }
}

/// Returns the bytes of the segments in `directory` after `end`: the server has made or recycled
/// them and writes them next.
fn waiting_bytes(directory: &Path, end: Lsn) -> u64 {
    fs::read_dir(directory).map_or(0, |entries| {
        sizes::sum(
            entries
                .flatten()
                .filter_map(|value| waiting_file_bytes(end, value)),
        )
    })
}

fn waiting_file_bytes(end: Lsn, entry: fs::DirEntry) -> Option<u64> {
    let name = entry
        .file_name()
        .into_string()
        .ok()
        .filter(|name| name.len() == 24)?;
    let bytes = entry.metadata().ok()?.len();
    let high = hex_half(&name, 8)?;
    let low = hex_half(&name, 16)?;
    let number = (high << 32).checked_div(bytes)?.checked_add(low)?;
    (number > end.0 / bytes).then_some(bytes)
}

fn hex_half(name: &str, offset: usize) -> Option<u64> {
    u64::from_str_radix(name.get(offset..offset + 8)?, 16).ok()
}

impl Session {
    /// Returns the bytes of WAL that the slot keeps, if there is a slot, and the end of the WAL.
    fn kept_bytes(&mut self) -> Result<Option<(u64, Lsn)>> {
        let Some(slot) = self.slot.clone() else {
            return Ok(None);
        };
        let now = self.wal_end_function();
        let sql = format!(
            "SELECT (SELECT pg_wal_lsn_diff({now}, restart_lsn)::int8 FROM pg_replication_slots \
                WHERE slot_name = $1), \
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

    /// Drops the slot, so that the server removes its WAL; at once if the role may request a
    /// checkpoint.
    pub(super) fn free_wal(&mut self) -> Result<()> {
        self.release_wal()?;
        self.rows("could not ask for a checkpoint", "CHECKPOINT", &[])
            .map(drop)
    }
}
