//! Writes a stored backup as a full one: a stream that stock tools read, whatever the backup refers
//! to.
//!
//! It uses the engine of a backup, with the stored backup as the source. The capture time, the
//! source, the tags and the facts of the cluster are kept; only the ID is new.

use crate::{
    backup::{Backup, Dedup, Outcome, Subject},
    plan::{SinkSpec, Tuning},
    report::damage::{Damage, Report, frame_damage},
    stored_backup::{Damaged, OnDamage, StoredBackup},
};
use fullbore_format::{
    digest::is_block_size,
    error::{Error, ErrorKind, Result},
};
use fullbore_pipeline::stage::codec::Codec;
use fullbore_platform::metrics::meter::Meter;
use fullbore_repository::{
    archive::{Archive, Selection},
    base::WantedBase,
    open::open,
    select::BackupFilter,
};
use fullbore_storage::Storages;
use std::{
    ffi::OsStr,
    num::NonZeroUsize,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

/// The destination of an export, and its options.
#[derive(Debug, Clone)]
pub struct ExportOptions {
    /// How storages are reached.
    pub storages: Storages,
    /// Whether the destination repository must exist already.
    pub no_create: bool,
    /// The destination.
    pub to: SinkSpec,
    /// Compression of frames; `None` for that of the stored backup.
    pub codec: Option<Codec>,
    /// Whether to continue after damage and export every undamaged file.
    pub keep_going: bool,
    /// Number of threads that compute.
    pub workers: NonZeroUsize,
    /// Memory limit of all buffers together, in bytes.
    pub memory: u64,
    /// Stored bytes of a segment.
    pub segment_bytes: u64,
}

/// The outcome of an export.
#[derive(Debug)]
pub struct Exported {
    /// The outcome of the written backup.
    pub outcome: Outcome,
    /// ID of the exported backup.
    pub from: String,
    /// Damage that cost files; only with `keep_going`.
    pub damage: Vec<Damage>,
    /// Damage that cost no file because another copy was intact.
    pub warnings: Vec<String>,
}

impl Exported {
    /// Returns 0, or 4 if something is damaged.
    pub fn exit_code(&self) -> u8 {
        if self.damage.is_empty() { 0 } else { 4 }
    }
}

impl ExportOptions {
    /// Exports `REPO[@BACKUP]`, or the latest backup that the filter selects.
    ///
    /// # Errors
    /// Every error that makes the export impossible; [`ErrorKind::Corrupt`] for damage without
    /// `keep_going`. After an error the destination has no new archive.
    pub fn run(
        &self,
        backup: &OsStr,
        filter: &BackupFilter,
        meter: &Arc<Meter>,
    ) -> Result<Exported> {
        self.run_archive(
            open(&self.storages, backup, filter)?,
            &Selection::default(),
            meter,
        )
    }

    /// Exports a selection of an open backup.
    ///
    /// # Errors
    /// Those of [`ExportOptions::run`].
    pub fn run_archive(
        &self,
        archive: Archive,
        selection: &Selection,
        meter: &Arc<Meter>,
    ) -> Result<Exported> {
        archive.store().check_readable()?;
        let report = Arc::new(Report::new(self.keep_going));
        report.missing_end(&archive.root)?;
        let noted = report.clone();
        let archive = Arc::new(archive.warn_with(move |damage| noted.warn(damage)));
        meter.total_bytes.store(archive.root.totals.bytes, Relaxed);
        let stored = Arc::new(StoredBackup::of(
            archive.clone(),
            selection.clone(),
            damage_listener(archive.clone(), report.clone()),
        ));
        let outcome = self.backup(&archive, stored)?.run(meter)?;
        let damage = report.damage();
        let warnings = report.warnings();
        Ok(Exported {
            outcome,
            from: archive.root.id.clone(),
            damage,
            warnings,
        })
    }

    /// Prepares a backup with the same frames, blocks and digests, so that digests are compared
    /// again.
    fn backup(&self, archive: &Archive, stored: Arc<StoredBackup>) -> Result<Backup> {
        let options = &archive.root.options;
        // Both sizes come from the root of the backup: they are checked before memory is taken.
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
            storages: self.storages.clone(),
            subject: Subject::Stored(stored),
            to: self.to.clone(),
            also: Vec::new(),
            no_create: self.no_create,
            codec: self
                .codec
                .unwrap_or_else(|| archive.codec.at_level(options.level)),
            digest: options.digest,
            host: None,
            max_rate: None,
            most_errors: None,
            tags: archive.root.tags.clone(),
            base: WantedBase {
                full: true,
                ..WantedBase::default()
            },
            dedup: Dedup::Source,
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

fn damage_listener(archive: Arc<Archive>, report: Arc<Report>) -> OnDamage {
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
            let hint = "`fullbore export --keep-going` leaves out damaged files and lists them; the exit code stays 4";
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
