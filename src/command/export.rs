//! Write a stored backup as a full one: a stream that stock tools read, whatever the backup refers to.
//!
//! It takes the path of any backup, with a stored one as the source. When it was captured, of what, its tags and what is
//! known of its cluster stay as they were; only its id is new.

use crate::{
    archive::Archive,
    backup::{Backup, Outcome, Subject},
    error::{Error, ErrorKind, Result},
    format::digest::is_block_size,
    metrics::meter::Meter,
    plan::{SinkSpec, Tuning},
    repo::{base::WantedBase, open::open, select::BackupFilter},
    report::damage::{Damage, Report, frame_damage},
    source::backup::{Damaged, OnDamage, StoredBackup},
    stage::codec::Codec,
};
use std::{
    ffi::OsString,
    num::NonZeroUsize,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

/// What to export, how, and where to.
#[derive(Debug, Clone)]
pub struct Export {
    /// `FROM[@BACKUP]`.
    pub from: OsString,
    /// Selects the backups of which the latest is exported.
    pub filter: BackupFilter,
    /// Must the repository it goes to be there?
    pub no_create: bool,
    /// Where to.
    pub to: SinkSpec,
    /// How frames are compressed; as they were, if it is not said.
    pub codec: Option<Codec>,
    /// Export what is whole even if something is damaged?
    pub keep_going: bool,
    /// Threads that compute.
    pub workers: NonZeroUsize,
    /// Bytes of all buffers together.
    pub memory: u64,
    /// Stored bytes of a segment.
    pub segment_bytes: u64,
}

/// What became of it.
#[derive(Debug)]
pub struct Exported {
    /// The backup that was written.
    pub outcome: Outcome,
    /// The backup it was made from.
    pub from: String,
    /// Damage that did harm; only with `keep_going`.
    pub damage: Vec<Damage>,
    /// Damage that did none, as another copy was whole.
    pub warnings: Vec<String>,
}

impl Exported {
    /// 0, or 4 if something is damaged.
    pub fn exit_code(&self) -> u8 {
        if self.damage.is_empty() { 0 } else { 4 }
    }
}

impl Export {
    /// Do it.
    ///
    /// # Errors
    /// Whatever makes it impossible; [`Kind::Corrupt`] for damage without `keep_going`. Nothing is committed then.
    pub fn run(&self, meter: &Arc<Meter>) -> Result<Exported> {
        self.run_archive(open(&self.from, &self.filter)?, meter)
    }

    /// Export a backup that is open.
    ///
    /// # Errors
    /// As [`Export::run`].
    pub fn run_archive(&self, archive: Archive, meter: &Arc<Meter>) -> Result<Exported> {
        let report = Arc::new(Report::new(self.keep_going));
        let noted = report.clone();
        let archive = Arc::new(archive.warn_with(move |damage| noted.warn(damage)));
        meter.total_bytes.store(archive.root.totals.bytes, Relaxed);
        let stored = Arc::new(StoredBackup::new(
            archive.clone(),
            tell(archive.clone(), report.clone()),
        ));
        let outcome = self.backup(&archive, stored)?.run(meter)?;
        let (damage, warnings) = (report.damage(), report.warnings());
        Ok(Exported {
            outcome,
            from: archive.root.id.clone(),
            damage,
            warnings,
        })
    }

    /// The same frames, blocks and digests, so that what was compared before is compared again.
    fn backup(&self, archive: &Archive, stored: Arc<StoredBackup>) -> Result<Backup> {
        let options = &archive.root.options;
        let frame_bytes = u32::try_from(options.frame_bytes)
            .ok()
            .filter(|bytes| is_block_size((*bytes).into()));
        let (Some(frame_bytes), true) = (frame_bytes, is_block_size(options.block_bytes)) else {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "cannot export a backup with frames or blocks of this size",
            ));
        };
        Ok(Backup {
            subject: Subject::Stored(stored),
            to: self.to.clone(),
            no_create: self.no_create,
            codec: self
                .codec
                .unwrap_or_else(|| archive.codec.at_level(options.level)),
            digest: options.digest,
            host: None,
            max_rate: None,
            tags: archive.root.tags.clone(),
            base: WantedBase {
                full: true,
                ..WantedBase::default()
            },
            checkpoint_interval: Duration::MAX,
            block_bytes: Some(options.block_bytes),
            chunks: options.chunks,
            tuning: Tuning {
                workers: self.workers,
                readers: None,
                memory_bytes: self.memory,
                frame_bytes,
                segment_bytes: self.segment_bytes,
            },
        })
    }
}

fn tell(archive: Arc<Archive>, report: Arc<Report>) -> OnDamage {
    Box::new(
        move |Damaged {
                  error,
                  frame,
                  files,
              }| {
            let damage = match &frame {
                Some(frame) if files.is_empty() => {
                    report.harmless(&archive, frame, error);
                    return Ok(());
                }
                Some(frame) => frame_damage(&archive, frame, error, files),
                None => (error, files),
            };
            let hint = "`fullbore export --keep-going` leaves out what is damaged and lists it; the exit code stays 4";
            report.add(damage).map_err(|error| {
                if error.kind.is_loss() {
                    error.hint(hint)
                } else {
                    error
                }
            })
        },
    )
}
