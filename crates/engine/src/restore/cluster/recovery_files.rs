//! Files of a cluster that its backup does not have: the settings of the recovery, and archived WAL.

use crate::{
    restore::{request::Restore, rules::WrittenParts},
    wal::read_segment,
};
use fullbore_format::{
    entry::{Entry, EntryKind, Owner, Time},
    error::{ErrorKind, Result},
    root::ClusterInfo,
};
use fullbore_postgres::restore::{
    conf,
    plan::{AUTO_CONF, ClusterPlan},
};
use fullbore_repository::{archive::small_file::small_file, open::place, wal::WalArchive};
use fullbore_tree::write::writer::TargetWriter;
use std::time::{SystemTime, UNIX_EPOCH};

/// Writes the WAL that a cluster needs to be consistent, if its backup left it to the archive.
///
/// # Errors
/// The storage's, or the system's; [`ErrorKind::Corrupt`] for damage.
pub(super) fn write_archived_wal(
    (restore, cluster): (&Restore, &ClusterInfo),
    plan: &ClusterPlan,
    parts: &WrittenParts<'_>,
) -> Result<()> {
    let WrittenParts { archive, tree, .. } = parts;
    if plan.archived_segments.is_empty() {
        return Ok(());
    }
    let (location, _) = place(&restore.from)?;
    let objects = restore.storages.objects(&location)?;
    let host = restore.postgres.recovery.wal_from.clone();
    let wal = WalArchive::new(objects, &cluster.system_identifier).preferring(host);
    let mut writer = TargetWriter::new(tree);
    let root = archive.find(b"")?;
    let owner = root.first().map(|item| item.entry.owner.clone());
    let owner = owner.unwrap_or_default();
    for segment in &plan.archived_segments {
        let content = read_segment(&wal, *segment)?;
        let path = format!("pg_wal/{segment}");
        write_text(&mut writer, new_entry(path.as_bytes(), &owner), &content)?;
    }
    Ok(())
}

/// Writes the settings and the signal file of a recovery.
///
/// # Errors
/// The system's, with the path; [`ErrorKind::Corrupt`] if the backup's settings are damaged.
pub(super) fn write_files(plan: &ClusterPlan, parts: &WrittenParts<'_>) -> Result<()> {
    let WrittenParts {
        archive,
        tree,
        report,
    } = parts;
    if !plan.recovery.changes_settings() {
        return Ok(());
    }
    let mut writer = TargetWriter::new(tree);
    let root = archive.find(b"")?;
    let owner = root.first().map(|item| item.entry.owner.clone());
    let owner = owner.unwrap_or_default();
    let old = match small_file(archive, AUTO_CONF) {
        // The recovery needs its settings even if those of the cluster are lost.
        Err(error) if error.kind == ErrorKind::Corrupt => {
            report.add((error, vec![AUTO_CONF.to_vec()]))?;
            None
        }
        other => other?,
    };
    let (entry, old) = old.unwrap_or_else(|| (new_entry(AUTO_CONF, &owner), Vec::new()));
    let text = conf::amend(&old, &plan.recovery.settings, &archive.root.id);
    write_text(&mut writer, entry, &text)?;
    if let Some(path) = plan.recovery.signal {
        write_text(&mut writer, new_entry(path, &owner), b"")?;
    }
    Ok(())
}

/// Returns the entry of a file that only its owner may read and write.
fn new_entry(path: &[u8], owner: &Owner) -> Entry {
    Entry {
        path: path.to_vec(),
        mode: 0o600,
        owner: owner.clone(),
        ..Entry::default()
    }
}

/// Writes `text` as the content of `entry`, with the current time.
fn write_text(writer: &mut TargetWriter, entry: Entry, text: &[u8]) -> Result<()> {
    let kind = EntryKind::File {
        size: text.len() as u64,
        map: None,
    };
    let mtime = now();
    writer.file(
        &Entry {
            kind,
            mtime,
            ..entry
        },
        text,
    )
}

fn now() -> Time {
    let elapsed = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Time {
        seconds: elapsed.as_secs() as i64,
        nanos: elapsed.subsec_nanos(),
    }
}
